"""What control frames about a topic say: TopicCreate, ConfigUpdate, SegmentChange. Their keys are FORMAT.md's.

A body is text and whole numbers; a list is text, its items separated by spaces, their numbers by commas. Unknown keys are
ignored and missing ones have their defaults, so that frames of an older version read as they were meant.
(Delete and EvictWatermark: `deletion.py`; WriterChange: `eddyline.store.recovery.replay`.)
Threading: pure functions.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.model.topic import Discard, Durability, Kind, TopicConfig
from eddyline.store.catalog.catalog import BaseEntry
from eddyline.store.log.topic import Topic
from eddyline.store.storage.layout import SegmentId
from eddyline.store.storage.segment.footer import SegmentSummary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from eddyline.store.log.idempotency_keys import KeyBudget

Body = dict[str, str | int]

_DEFAULT: TopicConfig = TopicConfig()


class Imported(NamedTuple):
    """A base that did not come from this topic's log: the topic begins with it. `writer` "" = no writer's position came
    with it."""

    writer: str = ""
    position: bytes = b""


class SegmentChange(NamedTuple):
    """Segments that come and go in one step.

    `segmented_seq`: up to there all is in segments or gone, so that the WAL's frames below are not needed; 0 = as before.
    `base`: the new fold base, None = as before. `next_generation` is above every generation given. `erase_due_ms`: what was
    deleted before is off the disk; by when what was deleted since must be, 0 = there is nothing. None = as before.
    `fold_lost`: whether the fold is, from here on; None = as before. `base_wanted`: the log does not give what the fold has,
    until a base does. `imported`: the base came from elsewhere, and the head is its seq; None = it did not.
    """

    stage: str
    next_generation: int
    add: tuple[SegmentSummary, ...] = ()
    remove: tuple[SegmentId, ...] = ()
    segmented_seq: int = 0
    base: BaseEntry | None = None
    erase_due_ms: int | None = None
    fold_lost: bool | None = None
    base_wanted: bool = False
    imported: Imported | None = None


def topic_body(name: str, kind: Kind, config: TopicConfig) -> Body:
    """The body of a TopicCreate frame."""
    return {**config_body(config), "kind": kind.name, "name": name}


def config_body(config: TopicConfig) -> Body:
    """A whole configuration; a setting at its default that older versions did not know is left out."""
    body: Body = {
        "durability": config.durability.name,
        "idempotency_window_ms": config.idempotency_window_ms,
    }
    if config.ttl_ms:
        body["ttl_ms"] = config.ttl_ms
    if config.cap_records:
        body["cap_records"] = config.cap_records
    if config.cap_bytes:
        body["cap_bytes"] = config.cap_bytes
    if config.discard is not _DEFAULT.discard:
        body["discard"] = config.discard.name
    if config.priority is not None:
        body["priority"] = config.priority
    if not config.dedupe_node:
        body["dedupe_node"] = 0
    return body


def config_of(body: Mapping[str, str | int]) -> TopicConfig:
    """The configuration that a body holds. Equal ones are one object where they are the default."""
    config = TopicConfig(
        durability=Durability[str(body["durability"])],
        idempotency_window_ms=int(body["idempotency_window_ms"]),
        ttl_ms=int(body.get("ttl_ms", 0)),
        cap_records=int(body.get("cap_records", 0)),
        cap_bytes=int(body.get("cap_bytes", 0)),
        discard=Discard[str(body.get("discard", _DEFAULT.discard.name))],
        priority=int(body["priority"]) if "priority" in body else None,
        dedupe_node=bool(body.get("dedupe_node", 1)),
    )
    return _DEFAULT if config == _DEFAULT else config


def topic_of(topic_id: int, body: Mapping[str, str | int], create_ts_ms: int, key_budget: KeyBudget) -> Topic:
    """The topic that a TopicCreate frame made."""
    return Topic(
        name=str(body["name"]),
        topic_id=topic_id,
        kind=Kind[str(body["kind"])],
        config=config_of(body),
        create_ts_ms=create_ts_ms,
        key_budget=key_budget,
    )


def segment_change_body(change: SegmentChange) -> Body:
    """The body of a SegmentChange frame."""
    body: Body = {"next_generation": change.next_generation, "stage": change.stage}
    if change.add:
        body["add"] = _joined(change.add)
    if change.remove:
        body["remove"] = _joined(change.remove)
    if change.segmented_seq:
        body["segmented_seq"] = change.segmented_seq
    if change.base is not None:
        body["base"] = _joined([change.base])
    if change.erase_due_ms is not None:
        body["erase_due_ms"] = change.erase_due_ms
    if change.fold_lost is not None:
        body["fold_lost"] = int(change.fold_lost)
    if change.base_wanted:
        body["base_wanted"] = 1
    if change.imported is not None:
        body["imported"] = 1
        if change.imported.writer:
            body["writer"] = change.imported.writer
            body["position"] = b64encode(change.imported.position).decode()
    return body


def segment_change_of(body: Mapping[str, str | int]) -> SegmentChange:
    """The change that a SegmentChange frame made. Numbers behind those that this version knows are ignored.

    Raises:
        KeyError, ValueError: it is none.
    """
    bases = [BaseEntry._make(numbers) for numbers in _split(body.get("base", ""), len(BaseEntry._fields))]
    return SegmentChange(
        stage=str(body["stage"]),
        next_generation=int(body["next_generation"]),
        add=tuple(map(SegmentSummary._make, _split(body.get("add", ""), len(SegmentSummary._fields)))),
        remove=tuple(map(SegmentId._make, _split(body.get("remove", ""), len(SegmentId._fields)))),
        segmented_seq=int(body.get("segmented_seq", 0)),
        base=bases[0] if bases else None,
        erase_due_ms=int(body["erase_due_ms"]) if "erase_due_ms" in body else None,
        fold_lost=bool(body["fold_lost"]) if "fold_lost" in body else None,
        base_wanted=bool(body.get("base_wanted", 0)),
        imported=_imported(body) if body.get("imported", 0) else None,
    )


def _imported(body: Mapping[str, str | int]) -> Imported:
    return Imported(str(body.get("writer", "")), b64decode(str(body.get("position", "")), validate=True))


def _joined(items: Iterable[tuple[int, ...]]) -> str:
    return " ".join(",".join(map(str, item)) for item in items)


def _split(text: str | int, size: int) -> list[list[int]]:
    """The first `size` numbers of each item."""
    items = [[int(number) for number in item.split(",")][:size] for item in str(text).split()]
    if any(len(item) < size for item in items):
        raise ValueError(f"an item of {text!r} has fewer than {size} numbers")
    return items
