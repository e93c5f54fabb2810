"""What committed control frames change in a topic: the same functions live and on replay, so that both end alike.

Threading: event loop, or recovery before it serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.store.log.control import SegmentChange, config_of
from eddyline.store.log.segments import Segment
from eddyline.store.storage.layout import SegmentId, base_file, segment_file
from eddyline.store.storage.segment.footer import SegmentSummary

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from eddyline.store.catalog.catalog import BaseEntry
    from eddyline.store.log.control import Imported
    from eddyline.store.log.deletion import DeleteBody, EvictBody
    from eddyline.store.log.topic import Topic


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
            topic.deleted_seqs.drop_through(topic.needed_after)
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
