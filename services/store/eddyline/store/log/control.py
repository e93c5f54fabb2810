"""What control frames about a topic say: TopicCreate, ConfigUpdate, SegmentChange. Their keys are FORMAT.md's.

A body is text and whole numbers; a list is text, its items separated by spaces, their numbers by commas. Unknown keys are
ignored and missing ones have their defaults, so that frames of an older version read as they were meant.
(Delete and EvictWatermark: `deletion.py`; WriterChange: `eddyline.store.recovery.replay`.)
Threading: pure functions.

What committed control frames change in a topic: the same functions live and on replay, so that both end alike.

Threading: event loop, or recovery before it serves.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.model.topic import Discard, Durability, Kind, TopicConfig
from eddyline.store.catalog.catalog import BaseEntry
from eddyline.store.log.segments import Segment
from eddyline.store.log.topic import Topic
from eddyline.store.storage.layout import SegmentId, base_file, segment_file
from eddyline.store.storage.segment.footer import SegmentSummary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from eddyline.store.catalog.catalog import BaseEntry
    from eddyline.store.log.deletion import DeleteBody, EvictBody
    from eddyline.store.log.idempotency_keys import KeyBudget
    from eddyline.store.log.topic import Topic


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


def apply_config(topic: Topic, body: Mapping[str, str | int]) -> None:
    """A ConfigUpdate is committed."""
    topic.config = config_of(body)
    topic.config_version = int(body["config_version"])


def apply_eviction(topic: Topic, eviction: EvictBody) -> None:
    """An EvictWatermark is committed: floors move."""
    topic.floors = topic.floors.raised(cap=eviction.cap_floor, ttl=eviction.ttl_floor)
    _take_off(topic, eviction.record_bytes)


def apply_deletion(topic: Topic, body: DeleteBody, *, erase_due_ms: int) -> None:
    """A Delete is committed. Without a match it moves a floor, which tells nothing; else it names seqs.

    What it removed is to be gone from the disk by `erase_due_ms`, or by an earlier time that stands.
    """
    topic.floors = topic.floors.raised(delete=body.deletion.floor)
    topic.delete_seqs(body.seqs)
    _take_off(topic, body.record_bytes)
    topic.erase_due_ms = topic.erase_due_ms or erase_due_ms
    topic.delete_mark += 1


def segment_of(summary: SegmentSummary, topic_dir: Path) -> Segment:
    """A segment where its name says it lies."""
    return Segment(summary, segment_file(topic_dir, SegmentId(*summary[:3])))


def base_of(base: BaseEntry, topic_dir: Path) -> Segment:
    """A base's file, to be held and let go of as a segment's. One of no rows has no file."""
    nothing = SegmentSummary(0, base.seq, base.generation, base.rows, 0, 0, base.file_bytes, 0, 0, 0)
    return Segment(nothing, base_file(topic_dir, base.seq, base.generation))


def apply_segment_change(topic: Topic, change: SegmentChange, topic_dir: Path) -> list[Segment]:
    """A SegmentChange is committed; the segments that are in no set any more, and the base that is replaced.

    Applied again over its own outcome (a frame before the catalog's moment) it changes nothing.
    """
    topic.next_generation = max(topic.next_generation, change.next_generation)
    segments = topic.segments
    removed = [segment for gone in change.remove if (segment := segments.find(gone)) is not None]
    added = [segment_of(one, topic_dir) for one in change.add if segments.find(SegmentId(*one[:3])) is None]
    if added or removed:
        topic.change_segments(add=added, remove=removed)
    if change.segmented_seq > topic.segmented_seq:
        topic.segmented_seq = change.segmented_seq
        topic.index.drop_through(change.segmented_seq)
    if change.base is not None and change.base != topic.base:
        if topic.base is not None and topic.base.rows:
            removed.append(base_of(topic.base, topic_dir))
        topic.base = change.base
        topic.base_wanted = False
    if change.erase_due_ms is not None:
        topic.erase_due_ms = change.erase_due_ms
        if not change.erase_due_ms:
            topic.deleted_seqs.drop_through(topic.retained_after_seq)
    if change.fold_lost is not None:
        topic.fold_lost = change.fold_lost
    topic.base_wanted |= change.base_wanted
    if change.imported is not None and change.base is not None:
        _begin_with(topic, change.base.seq, change.imported)
    return removed


def _begin_with(topic: Topic, seq: int, imported: Imported) -> None:
    """An import is committed: the log begins behind `seq`, and of what was before it the base alone is there."""
    if topic.head_seq >= seq:
        return
    topic.head_seq = topic.staged_seq = topic.segmented_seq = seq
    topic.reserved_seq = max(topic.reserved_seq, seq)
    topic.staged_reserved_seq = max(topic.staged_reserved_seq, seq)
    topic.floors = topic.floors.raised(compacted=seq)
    topic.has_records = True
    if imported.writer:
        fence = topic.writers.get(imported.writer).fence
        topic.writers.commit(imported.writer, fence, imported.position, now_ms=topic.last_ts_ms)


def _take_off(topic: Topic, record_bytes: int) -> None:
    topic.record_bytes -= record_bytes
    topic.staged_bytes -= record_bytes
    topic.floors = topic.floors.past_deleted(topic.deleted_seqs)
