"""Topics: name rule, kind, durability class, configuration, and state as readers see it.

A configuration is checked here only: by `check_config` before a topic is made, by `merged` before one is changed. A
configuration on disk has passed one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeVar

from eddyline.core.errors import InvalidConfig, InvalidName
from eddyline.core.records.record import NAME_PATTERN, RECORD_OVERHEAD_BYTES

IDEMPOTENCY_WINDOW_MS_DEFAULT: Final = 120_000
IDEMPOTENCY_WINDOW_MS_MAX: Final = 86_400_000
TTL_MS_MAX: Final = 100 * 365 * 86_400_000
"""Unbounded in Kafka. 100 years: longer is an error of the unit; sums with commit times stay far within 64 bits."""
CAP_MAX: Final = 1 << 53
"""Of records and of bytes: an integer that a client of every language represents exactly; as bytes 8 PiB, above any one
disk.
"""
PRIORITY_MAX: Final = 1_000
"""The contract's bound; the lowest priority is its negative."""

T = TypeVar("T")


class Kind(IntEnum):
    """Type of a topic. The numbers are on the wire, the names on disk."""

    LOG = 1
    KV = 2


class Durability(IntEnum):
    """Condition for acknowledging an append. The numbers are on the wire, the names on disk."""

    DISK = 1
    FSYNC = 2
    EPHEMERAL = 3


class Discard(IntEnum):
    """Effect of an append over the cap: the oldest records are evicted, or the append is refused.

    The numbers are on the wire, the names on disk.
    """

    OLD = 1
    REJECT = 2


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings; every field has its default.

    0 = off for `ttl_ms` and the caps; no priority = ordered by recency.
    """

    durability: Durability = Durability.DISK
    idempotency_window_ms: int = IDEMPOTENCY_WINDOW_MS_DEFAULT
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = Discard.OLD
    priority: int | None = None
    dedupe_node: bool = True


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Settings changed by an update: None = unchanged. `clear_priority` removes a priority and excludes a new one."""

    durability: Durability | None = None
    idempotency_window_ms: int | None = None
    ttl_ms: int | None = None
    cap_records: int | None = None
    cap_bytes: int | None = None
    discard: Discard | None = None
    priority: int | None = None
    dedupe_node: bool | None = None
    clear_priority: bool = False


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic at one moment. `epoch` is its id; `source` is empty if no source writes it.

    `evict_floor` is the highest seq lost to retention, 0 = none; `record_count` and `record_bytes` count live records,
    without gaps; `config_version` grows with every update. `delete_mark` changes with each record delete on request and
    each start of the store; only equality of marks has a meaning, and it is no part of a topic's equality.
    """

    name: str
    epoch: int
    kind: Kind
    config: TopicConfig
    head_seq: int
    earliest_seq: int
    source: str
    create_ts_ms: int
    evict_floor: int = 0
    record_count: int = 0
    record_bytes: int = 0
    config_version: int = 1
    delete_mark: int = field(default=0, compare=False)


def check_name(name: str, what: str) -> None:
    """Refuse a name that breaks the rule: a letter or digit, then up to 254 letters, digits, or `. _ : -`.

    Raises:
        InvalidName: with `what` (topic, source, writer) as the field.
    """
    if not NAME_PATTERN.fullmatch(name):
        name_text = name if len(name) <= 300 else name[:300] + "…"
        raise InvalidName(
            f"{what} name {name_text!r} is not a letter or digit followed by at most 254 letters, digits or . _ : -",
            field=what,
            name=name_text,
        )


def check_config(config: TopicConfig, kind: Kind, source: str = "") -> None:
    """Refuse out-of-bounds or contradictory settings of a topic of this kind, with this source (empty = none).

    Raises:
        InvalidConfig: `field` names the setting; the message names both if two contradict.
    """
    _check_bounds(config)
    if config.discard is Discard.REJECT and not (config.cap_records or config.cap_bytes):
        raise InvalidConfig(
            "discard REJECT needs a cap: set cap_records or cap_bytes, or use discard OLD",
            field="config.discard",
        )
    if config.durability is not Durability.EPHEMERAL:
        return
    if kind is not Kind.LOG:
        raise InvalidConfig(
            f"durability EPHEMERAL is for topics of kind LOG, not of kind {kind.name}: a fold outlives the process",
            field="config.durability",
            kind=kind.name,
        )
    if source:
        raise InvalidConfig(
            f"durability EPHEMERAL is not for a topic with a source ({source}): its position outlives the records",
            field="config.durability",
            source=source,
        )


def merged(config: TopicConfig, change: ConfigChange, kind: Kind, source: str = "") -> TopicConfig:
    """Return the checked configuration after an update of a topic of this kind, with this source (empty = none).

    Raises:
        InvalidConfig: as `check_config`; EPHEMERAL would become another class, or another class EPHEMERAL; a priority is
            both set and removed.
    """
    if change.clear_priority and change.priority is not None:
        message = "priority and clear_priority are both set: leave one out"
        raise InvalidConfig(message, field="config.priority")
    updated = changed(config, change)
    if (config.durability is Durability.EPHEMERAL) is not (updated.durability is Durability.EPHEMERAL):
        raise InvalidConfig(
            f"durability {config.durability.name} cannot become durability {updated.durability.name}: "
            "whether a topic is EPHEMERAL is fixed at creation",
            field="config.durability",
            durability=config.durability.name,
            askedDurability=updated.durability.name,
        )
    check_config(updated, kind, source)
    return updated


def changed(config: TopicConfig, change: ConfigChange) -> TopicConfig:
    """Return the configuration with the change applied, unchecked: settings that the change leaves out keep their value."""
    return TopicConfig(
        durability=_or(change.durability, config.durability),
        idempotency_window_ms=_or(change.idempotency_window_ms, config.idempotency_window_ms),
        ttl_ms=_or(change.ttl_ms, config.ttl_ms),
        cap_records=_or(change.cap_records, config.cap_records),
        cap_bytes=_or(change.cap_bytes, config.cap_bytes),
        discard=_or(change.discard, config.discard),
        priority=None if change.clear_priority else _or(change.priority, config.priority),
        dedupe_node=_or(change.dedupe_node, config.dedupe_node),
    )


def _or(new: T | None, old: T) -> T:
    return old if new is None else new


def _check_bounds(config: TopicConfig) -> None:
    _check_within("idempotency_window_ms", config.idempotency_window_ms, 1, IDEMPOTENCY_WINDOW_MS_MAX)
    _check_within("ttl_ms", config.ttl_ms, 0, TTL_MS_MAX)
    _check_within("cap_records", config.cap_records, 0, CAP_MAX)
    _check_within("cap_bytes", config.cap_bytes, 0, CAP_MAX)
    if 0 < config.cap_bytes < RECORD_OVERHEAD_BYTES:
        _check_within("cap_bytes", config.cap_bytes, RECORD_OVERHEAD_BYTES, CAP_MAX)
    if config.priority is not None:
        _check_within("priority", config.priority, -PRIORITY_MAX, PRIORITY_MAX)


def _check_within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        message = f"{name} is {value}, not within {least} to {most}"
        raise InvalidConfig(message, field=f"config.{name}", value=value, valueMin=least, valueMax=most)
