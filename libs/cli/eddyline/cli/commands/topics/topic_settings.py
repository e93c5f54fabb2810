"""A topic's settings as flags, and as they are shown."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from eddyline.cli.command import count, whole_number
from eddyline.cli.terminal.units import duration_ms, format_bytes, format_duration, pluralize, size_bytes
from eddyline.core.model.topic import PRIORITY_MAX, ConfigChange, Discard, Durability

if TYPE_CHECKING:
    from eddyline.cli.terminal.output import Json
    from eddyline.core.model.topic import TopicConfig


def add_settings(parser: argparse.ArgumentParser, *, updates: bool) -> None:
    """Add a flag a setting: one left out keeps its value (`updates`), or has its default."""

    def default(text: str) -> str:
        return "" if updates else f" (default: {text})"

    parser.add_argument(
        "--durability",
        type=str.lower,
        choices=tuple(one.name.lower() for one in Durability),
        help="acknowledge when the kernel has it, when the disk has it, or from memory: ephemeral records are gone"
        " after a restart, and whether a topic is so is settled when it is made" + default("disk"),
    )
    parser.add_argument(
        "--ttl", type=duration_ms, metavar="DURATION", help="age at which records expire; 0 = never" + default("0")
    )
    parser.add_argument("--cap-records", type=count, metavar="N", help="most records; 0 = no cap" + default("0"))
    parser.add_argument(
        "--cap-bytes", type=size_bytes, metavar="SIZE", help="most bytes of records; 0 = no cap" + default("0")
    )
    parser.add_argument(
        "--discard",
        type=str.lower,
        choices=tuple(one.name.lower() for one in Discard),
        help="over the cap, evict the oldest or refuse the append" + default("old"),
    )
    parser.add_argument(
        "--idempotency-window",
        type=duration_ms,
        metavar="DURATION",
        help="how long idempotency keys are remembered" + default("2m"),
    )
    priority = parser.add_mutually_exclusive_group()
    priority.add_argument(
        "--priority",
        type=_priority,
        metavar="N",
        help="place among the topics that wait for delivery, -1000 to 1000" + default("by recency"),
    )
    if updates:
        priority.add_argument("--no-priority", action="store_true", help="go by recency again")
    parser.add_argument(
        "--dedupe-node",
        action=argparse.BooleanOptionalAction,
        help="whether readers may skip records by the node that wrote them" + default("they may"),
    )


def _priority(text: str) -> int:
    return whole_number(text, -PRIORITY_MAX, PRIORITY_MAX)


def config_change_from_args(arguments: argparse.Namespace) -> ConfigChange:
    """The configuration changes that the flags ask for."""
    return ConfigChange(
        durability=None if arguments.durability is None else Durability[arguments.durability.upper()],
        idempotency_window_ms=arguments.idempotency_window,
        ttl_ms=arguments.ttl,
        cap_records=arguments.cap_records,
        cap_bytes=arguments.cap_bytes,
        discard=None if arguments.discard is None else Discard[arguments.discard.upper()],
        priority=arguments.priority,
        dedupe_node=arguments.dedupe_node,
        clear_priority=getattr(arguments, "no_priority", False),
    )


def settings_fields(config: TopicConfig) -> dict[str, Json]:
    """Settings as a JSON object."""
    return {
        "durability": config.durability.name,
        "idempotency_window_ms": config.idempotency_window_ms,
        "ttl_ms": config.ttl_ms,
        "cap_records": config.cap_records,
        "cap_bytes": config.cap_bytes,
        "discard": config.discard.name,
        "priority": config.priority,
        "dedupe_node": config.dedupe_node,
    }


def kept_text(config: TopicConfig) -> str:
    """A topic's retention, as text."""
    bounds: list[str] = []
    if config.ttl_ms:
        bounds.append(format_duration(config.ttl_ms))
    if config.cap_records:
        bounds.append(pluralize(config.cap_records, "record"))
    if config.cap_bytes:
        bounds.append(format_bytes(config.cap_bytes))
    if config.discard is Discard.REJECT:
        bounds.append("then rejects")
    return ", ".join(bounds) or "all"
