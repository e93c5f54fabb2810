"""Bodies of control frames about a topic (TopicCreate, ConfigUpdate, SegmentChange), and the changes that they make to it.

FORMAT.md has their keys. A body is text and whole numbers; a list is text, its items separated by spaces, their numbers by
commas. Unknown keys are ignored and missing ones have their defaults, so that frames of an older version keep their
meaning. (Delete and EvictWatermark: `deletion.py`; WriterChange: `eddyline.store.recovery.replay`.) The same functions
apply a committed frame live and on replay, so that both end alike.
Threading: pure functions; those that apply a frame run on the event loop, or in recovery before it serves.
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
    """Segments added and removed in one step.

    `segmented_seq`: every row up to it is in segments or gone, so the WAL's frames below are not needed; 0 = unchanged.
    `base`: the new fold base, None = unchanged. `next_generation` is above every generation assigned. `erase_due_ms`: the
    records deleted before are off the disk; the time by which those deleted since must be, 0 = there are none, None =
    unchanged. `fold_lost`: whether the fold is lost from here on; None = unchanged. `base_wanted`: the log does not give
    the fold's content, until a base does. `imported`: the base was imported, and the head is its seq; None = it was not."""

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
    """Return the body of a TopicCreate frame."""
    return {**config_body(config), "kind": kind.name, "name": name}


def config_body(config: TopicConfig) -> Body:
    """Return the body of a whole configuration; a setting at its default that older versions did not know is left out."""
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
    """Return the configuration of a body. Equal default configurations are one object."""
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


def topic_from_body(topic_id: int, body: Mapping[str, str | int], create_ts_ms: int, key_budget: KeyBudget) -> Topic:
    """Return the topic that a TopicCreate frame creates."""
    return Topic(
        name=str(body["name"]),
        topic_id=topic_id,
        kind=Kind[str(body["kind"])],
        config=config_of(body),
        create_ts_ms=create_ts_ms,
        key_budget=key_budget,
    )


def segment_change_body(change: SegmentChange) -> Body:
    """Return the body of a SegmentChange frame."""
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
    """Return the change of a SegmentChange frame. Numbers behind those that this version knows are ignored.

    Raises:
        KeyError, ValueError: the body is none.
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
    """Return the first `size` numbers of each item."""
    items = [[int(number) for number in item.split(",")][:size] for item in str(text).split()]
    if any(len(item) < size for item in items):
        raise ValueError(f"an item of {text!r} has fewer than {size} numbers")
    return items


def apply_config(topic: Topic, body: Mapping[str, str | int]) -> None:
    """Apply a committed ConfigUpdate."""
    topic.config = config_of(body)
    topic.config_version = int(body["config_version"])


def apply_eviction(topic: Topic, eviction: EvictBody) -> None:
    """Apply a committed EvictWatermark: floors move."""
    topic.floors = topic.floors.raised(cap=eviction.cap_floor, ttl=eviction.ttl_floor)
    _take_off(topic, eviction.record_bytes)


def apply_deletion(topic: Topic, body: DeleteBody, *, erase_due_ms: int) -> None:
    """Apply a committed Delete. Without a match it moves a floor, and readers get no gap for it; else it names seqs.

    The removed records must be off the disk by `erase_due_ms`, or by an earlier time that was set before."""
    topic.floors = topic.floors.raised(delete=body.deletion.floor)
    topic.delete_seqs(body.seqs)
    _take_off(topic, body.record_bytes)
    topic.erase_due_ms = topic.erase_due_ms or erase_due_ms
    topic.delete_mark += 1


def segment_of(summary: SegmentSummary, topic_dir: Path) -> Segment:
    """Return a segment at the path of its name."""
    return Segment(summary, segment_file(topic_dir, SegmentId(*summary[:3])))


def segment_of_base(base: BaseEntry, topic_dir: Path) -> Segment:
    """Return a base's file, held and released like a segment's. A base of no rows has no file."""
    nothing = SegmentSummary(0, base.seq, base.generation, base.rows, 0, 0, base.file_bytes, 0, 0, 0)
    return Segment(nothing, base_file(topic_dir, base.seq, base.generation))


def apply_segment_change(topic: Topic, change: SegmentChange, topic_dir: Path) -> list[Segment]:
    """Apply a committed SegmentChange; return the segments that are in no set any more, and the replaced base.

    Applied again over its own outcome (a frame before the catalog's checkpoint) it changes nothing."""
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
            removed.append(segment_of_base(topic.base, topic_dir))
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
    """Apply a committed import: the log begins behind `seq`, and only the base has the records up to it."""
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
