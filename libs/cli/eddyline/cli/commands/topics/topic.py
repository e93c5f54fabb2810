"""`eddyline topic`: create, update, get, list, delete, erase."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_group, add_verb, connected, count
from eddyline.cli.commands.topics.topic_settings import (
    add_settings,
    config_change_from_args,
    kept_text,
    settings_fields,
)
from eddyline.cli.errors import EXIT_OK, CommandError
from eddyline.cli.terminal.confirm import add_yes, confirm
from eddyline.cli.terminal.output import Json, format_time
from eddyline.cli.terminal.progress import ProgressReporter, share
from eddyline.cli.terminal.units import format_bytes, format_duration, pluralize
from eddyline.core.model.topic import ConfigChange, Kind, TopicConfig, changed

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers
    from eddyline.core.model.deletion import EraseProgress
    from eddyline.core.model.topic import TopicInfo

_HEADER: Final = ("NAME", "KIND", "DURABILITY", "RECORDS", "BYTES", "FROM", "TO", "KEEPS", "SOURCE", "CREATED")
_MORE: Final = """

Durations: 24h, 90s, 1h30m, 500ms, 7d. Sizes: 64MiB, 10GB, 4096. With both caps the one that is hit first holds. Of a KV
topic the log is bounded, never the live values."""
_JSON: Final = """

JSON (-o json), an object a topic: name, kind, epoch, head_seq, earliest_seq, evict_floor (highest seq that retention took,
0 = none), record_count, record_bytes (both of live records), config_version, durability, idempotency_window_ms, ttl_ms,
cap_records, cap_bytes, discard, priority (null = by recency), dedupe_node, source, create_ts_ms."""


def add(subparsers: Subparsers) -> None:
    verbs = add_group(subparsers, "topic", what="Create, change, look at, list, delete and erase topics.")
    _add_create_and_update(verbs)
    parser = add_verb(
        verbs, "get", what="Show a topic.", example="eddyline topic get prices -o json", run=get, more=_JSON
    )
    parser.add_argument("name", metavar="NAME")
    parser = add_verb(
        verbs, "list", what="List topics by name.", example="eddyline topic list pri", run=list_topics, more=_JSON
    )
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only names that start so")
    parser = add_verb(
        verbs,
        "delete",
        what="Delete a topic with all it has, its source too.",
        example="eddyline topic delete prices",
        run=delete,
    )
    add_yes(parser)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--if-empty", action="store_true", help="only if it has no records")
    _add_if_epoch(parser)
    parser = add_verb(
        verbs,
        "erase",
        what="Remove a topic's deleted records from the disk, and wait until none is left there.",
        example="eddyline delete prices --key BTC && eddyline topic erase prices",
        run=erase,
    )
    parser.add_argument("name", metavar="NAME")
    _add_if_epoch(parser)


def _add_create_and_update(verbs: Subparsers) -> None:
    parser = add_verb(
        verbs,
        "create",
        what="Create a topic.",
        example="eddyline topic create prices --kind kv\neddyline topic create access --ttl 7d --cap-bytes 10GiB",
        run=create,
        more=_MORE,
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--kind",
        type=str.lower,
        choices=("log", "kv"),
        default="log",
        help="kv = a live value per key (default: log)",
    )
    add_settings(parser, updates=False)
    parser = add_verb(
        verbs,
        "update",
        what="Change a topic's settings: those that are not given keep their values.",
        example="eddyline topic update access --ttl 24h --cap-bytes 1GiB\neddyline topic update access --cap-bytes 0",
        run=update,
        more=_MORE,
    )
    parser.set_defaults(contradiction=_changes_nothing)
    parser.add_argument("name", metavar="NAME")
    add_settings(parser, updates=True)
    _add_if_epoch(parser)


def _add_if_epoch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--if-epoch", type=count, default=0, metavar="EPOCH", help="only if it is still this one")


def _changes_nothing(arguments: argparse.Namespace) -> str:
    return "give a setting to change" if config_change_from_args(arguments) == ConfigChange() else ""


async def create(arguments: argparse.Namespace, context: Context) -> int:
    """Create a topic."""
    config = changed(TopicConfig(), config_change_from_args(arguments))
    async with connected(arguments, context, topic=arguments.name) as client:
        topic = await client.create_topic(arguments.name, Kind[arguments.kind.upper()], config)
    context.output.print_result(f"created {topic.name} ({topic.kind.name}, epoch {topic.epoch})", topic_fields(topic))
    return EXIT_OK


async def update(arguments: argparse.Namespace, context: Context) -> int:
    """Change a topic."""
    async with connected(arguments, context, topic=arguments.name) as client:
        topic = await client.update_topic(
            arguments.name, config_change_from_args(arguments), if_epoch=arguments.if_epoch
        )
    text = f"updated {topic.name} (configuration {topic.config_version}): it keeps {kept_text(topic.config)}"
    context.output.print_result(text, topic_fields(topic))
    return EXIT_OK


async def get(arguments: argparse.Namespace, context: Context) -> int:
    """Show a topic."""
    async with connected(arguments, context, topic=arguments.name) as client:
        topic = await client.get_topic(arguments.name)
    fields = topic_fields(topic)
    notes = _notes(topic)
    lines = [f"{name}: {'-' if value in (None, '') else value}{notes.get(name, '')}" for name, value in fields.items()]
    context.output.print_result("\n".join(lines), fields)
    return EXIT_OK


async def list_topics(arguments: argparse.Namespace, context: Context) -> int:
    async with connected(arguments, context, topic=arguments.prefix) as client:
        topics = [topic async for topic in client.list_topics(arguments.prefix)]
    if not topics:
        context.output.print_text("no topics; make one with `eddyline topic create NAME`")
    context.output.table(_HEADER, [_row(topic) for topic in topics], [topic_fields(topic) for topic in topics])
    return EXIT_OK


async def delete(arguments: argparse.Namespace, context: Context) -> int:
    """Delete a topic."""
    async with connected(arguments, context, topic=arguments.name) as client:
        topic = await client.get_topic(arguments.name)
        source = f" and its source {topic.source}" if topic.source else ""
        await confirm(f"delete topic {topic.name}{source}, with {pluralize(topic.record_count, 'record')}?", arguments)
        epoch = await client.delete_topic(arguments.name, if_epoch=arguments.if_epoch, if_empty=arguments.if_empty)
    told: dict[str, Json] = {"name": arguments.name, "epoch": epoch, "deleted": True, "source": topic.source}
    context.output.print_result(f"deleted {arguments.name}{source}", told)
    return EXIT_OK


async def erase(arguments: argparse.Namespace, context: Context) -> int:
    """Erase what was deleted from a topic."""
    progress = ProgressReporter(context.clock)
    step: EraseProgress | None = None
    async with (
        connected(arguments, context, topic=arguments.name) as client,
        aclosing(client.erase_topic(arguments.name, if_epoch=arguments.if_epoch)) as steps,
    ):
        async for step in steps:
            of = f"{format_bytes(step.done_bytes)} of {format_bytes(step.total_bytes)}"
            progress.tell(f"erasing {arguments.name}: {share(step.done_bytes, step.total_bytes)}, {of}")
    if step is None or not step.erased:
        raise CommandError(f"the store ended the erasure of {arguments.name} before all was erased", "try again")
    context.output.print_result(
        f"erased: nothing that was deleted from {arguments.name} is on disk any more",
        {"name": arguments.name, "erased": True, "done_bytes": step.done_bytes},
    )
    return EXIT_OK


def topic_fields(topic: TopicInfo) -> dict[str, Json]:
    """A topic as a JSON object."""
    return {
        "name": topic.name,
        "kind": topic.kind.name,
        "epoch": topic.epoch,
        "head_seq": topic.head_seq,
        "earliest_seq": topic.earliest_seq,
        "evict_floor": topic.evict_floor,
        "record_count": topic.record_count,
        "record_bytes": topic.record_bytes,
        "config_version": topic.config_version,
        **settings_fields(topic.config),
        "source": topic.source,
        "create_ts_ms": topic.create_ts_ms,
    }


def _notes(topic: TopicInfo) -> dict[str, str]:
    """Explanations that the text form prints next to a field."""
    config = topic.config
    notes = {
        "record_bytes": format_bytes(topic.record_bytes),
        "idempotency_window_ms": format_duration(config.idempotency_window_ms),
        "ttl_ms": format_duration(config.ttl_ms) if config.ttl_ms else "off",
        "cap_records": "" if config.cap_records else "off",
        "cap_bytes": format_bytes(config.cap_bytes) if config.cap_bytes else "off",
        "evict_floor": "retention took all up to it" if topic.evict_floor else "",
        "create_ts_ms": format_time(topic.create_ts_ms),
    }
    return {name: f" ({note})" for name, note in notes.items() if note}


def _row(topic: TopicInfo) -> tuple[str, ...]:
    return (
        topic.name,
        topic.kind.name,
        topic.config.durability.name,
        str(topic.record_count),
        format_bytes(topic.record_bytes),
        str(topic.earliest_seq),
        str(topic.head_seq),
        kept_text(topic.config),
        topic.source or "-",
        format_time(topic.create_ts_ms)[:19],
    )
