"""Replay: rebuilds topics, sources and fold from the catalog and the WAL's frames, before the store serves.

The catalog has the state at a checkpoint: at the beginning of file `state_number` of each WAL shard, or at a frame in it if
a replay was cut off there. Frames before it, kept because no segment has their records yet, and carried frames are only
indexed; frames after it are applied. Replay makes no decisions: it applies frames in order and reads no clock. Questions
about the machine (were bytes lost?) are decided after it, and the answers logged (`losses.py`).

I1: recovering twice gives the same state. I2: a fold ahead of its log (after a power failure) is valid: the head moves past
it and its positions are taken. I3: unknown data is never destroyed. I4: topic names are resolved once all shards are
replayed: if a topic was deleted in one shard and created again in another, the replay has both for a while.
Threading: synchronous; runs before the store serves. Any thread may read its counters.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import DataCorrupt, NewerFormat
from eddyline.core.model.source import SourceReport
from eddyline.core.model.topic import Kind
from eddyline.core.records.gap import split_gaps
from eddyline.core.records.record import Gap
from eddyline.store.catalog.catalog import ErasingEntry
from eddyline.store.fold.entries import entries_of
from eddyline.store.fold.erase import erase_entries
from eddyline.store.fold.fold import FoldWrite, WriterState
from eddyline.store.log.control import (
    apply_config,
    apply_deletion,
    apply_eviction,
    apply_segment_change,
    segment_change_of,
    topic_from_body,
)
from eddyline.store.log.deletion import decode_delete, decode_evict
from eddyline.store.log.idempotency_keys import KeyedAppend
from eddyline.store.log.sources import ReplayedSource, put_control, put_definition, put_stop, updated_definition
from eddyline.store.storage.wal.frame import CARRIED, FrameType

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.records.batch import Batch
    from eddyline.store.fold.fold import ReplayedFold
    from eddyline.store.log.segments import Segment
    from eddyline.store.log.sources import SourceTable
    from eddyline.store.log.table import TopicTable
    from eddyline.store.log.topic import Topic
    from eddyline.store.storage.layout import Layout
    from eddyline.store.storage.wal.frame import WalFrame
    from eddyline.store.storage.wal.wal import Location

REPLAY_ENTRIES_MAX: Final = 4096


class Replay:
    """Applies each WAL shard's frames in order."""

    def __init__(self, *, table: TopicTable, layout: Layout, erase_within_ms: int) -> None:
        self._table = table
        self._layout = layout
        self._erase_within_ms = erase_within_ms
        self._pending: list[FoldWrite] = []
        self._pending_entries = 0
        self.sources: dict[int, ReplayedSource] = {}
        """Sources by the id of their topic."""
        self.replaced: list[Segment] = []
        """Segments that were replaced: their files may still exist."""
        self.gone: dict[int, ErasingEntry] = {}
        """Topics deleted since the checkpoint, by id: their files may still exist."""
        self.behind: set[int] = set()
        """KV topics whose fold lacks records from before the replayed frames: to be rebuilt from the log."""
        self.frame_count = 0
        self.bytes = 0
        self.fold_is_ahead = False

    def shard(self, state_number: int, state_offset: int = 0) -> Callable[[WalFrame, Location], None]:
        """Return the frame handler of one shard; the catalog has the frames before `state_offset` of file `state_number`."""
        return partial(self._frame, (state_number, state_offset))

    def begin(self, fold: ReplayedFold) -> None:
        """Find the topics whose fold is behind the catalog. The table has the catalog's topics."""
        self._fold, self._applied = fold, dict(fold.topics())
        for topic in self._table.all():
            if topic.kind is Kind.KV and self._applied.get(topic.id, 0) < topic.head_seq:
                self.behind.add(topic.id)

    def _frame(self, state: tuple[int, int], frame: WalFrame, location: Location) -> None:
        """Apply one frame. A frame of a topic that a later frame deletes is applied too, and removed by the delete."""
        self.frame_count += 1
        self.bytes += frame.frame_len
        is_known = location[:2] < state
        if frame.type == FrameType.APPEND and (is_known or frame.flags & CARRIED):
            self._index(frame, location)
        elif not is_known:
            self._apply(frame, location)

    def _index(self, frame: WalFrame, location: Location) -> None:
        """Index a frame whose effects the catalog has, if its records are in no segment yet."""
        topic, batch = self._table.by_id(frame.topic_id), frame.batch
        assert batch is not None
        if topic is not None and batch.count and batch.last_seq > topic.segmented_seq:
            size = batch.record_bytes
            topic.index.put(batch.first_seq, batch.last_seq, location, ts_ms=frame.ts_ms, record_bytes=size)
            self._table.has_grown(topic)

    def _apply(self, frame: WalFrame, location: Location) -> None:
        if frame.type == FrameType.TOPIC_CREATE:
            created = topic_from_body(frame.topic_id, _control(frame), frame.ts_ms, self._table.key_budget)
            created.last_ts_ms = frame.ts_ms
            self._table.replayed(created)
            return
        topic = self._table.by_id(frame.topic_id)
        if topic is None:
            return
        topic.last_ts_ms = max(topic.last_ts_ms, frame.ts_ms)
        self._table.dirty.add(topic)
        if frame.type == FrameType.APPEND:
            self._append(topic, frame, location)
        elif frame.type == FrameType.TOPIC_DELETE:
            self._delete_topic(topic, frame)
        elif frame.type == FrameType.HEAD_WATERMARK:
            topic.reserved_seq = topic.staged_reserved_seq = frame.first_seq
        elif frame.type == FrameType.WRITER_CHANGE:
            self._change_writer(topic, _control(frame), location)
        elif frame.type == FrameType.CONFIG_UPDATE:
            apply_config(topic, _control(frame))
        elif frame.type == FrameType.EVICT_WATERMARK:
            apply_eviction(topic, decode_evict(_control(frame)))
        elif frame.type == FrameType.DELETE:
            self._delete_records(topic, frame)
        elif frame.type == FrameType.SEGMENT_CHANGE:
            change = segment_change_of(_control(frame))
            self._table.segmented.add(topic)
            self.replaced += apply_segment_change(topic, change, self._layout.topic_dir(topic.id))
            if change.imported is not None and self._applied.get(topic.id, 0) < topic.head_seq:
                self.behind.add(topic.id)

    def finish(self, sources: SourceTable) -> None:
        """Resolve names and sources, bring the fold up to date, and delete from it the topics that the log has deleted.

        A topic whose log lost all its records is not empty if its fold has some.

        Raises:
            DataCorrupt: the fold has a topic that the log never created.
        """
        self.flush()
        self._table.name_all()
        for topic_id, replayed in self.sources.items():
            topic = self._table.by_id(topic_id)
            assert topic is not None, "a topic's deletion removes its source"
            sources.add(replayed.definition, topic)
            source = sources.get(replayed.definition.name)
            source.control, source.stop = replayed.control, replayed.stop
            if replayed.fence:
                fence, holder, lease_ms = replayed.fence, replayed.holder, replayed.lease_ms
                sources.leased(source, fence=fence, holder=holder, lease_ms=lease_ms)
            if replayed.stop is not None:
                source.report = SourceReport(replayed.stop.state, replayed.stop.reason)
        for topic_id in self._fold.topics():
            if self._table.by_id(topic_id) is not None:
                continue
            if not self._table.saw_id(topic_id):
                raise DataCorrupt(
                    f"the fold has topic {topic_id}, which the WAL never created: the fold may belong to another directory",
                    file="fold",
                    offset=0,
                )
            self._fold.delete_topic(topic_id)
        for topic in self._table.all():
            if not topic.has_records and self._fold.applied(topic.id):
                topic.has_records = _has_entries(self._fold, topic.id)
        kv_topics = [topic for topic in self._table.all() if topic.kind is Kind.KV]
        self.fold_is_ahead = any(self._applied.get(topic.id, 0) > topic.head_seq for topic in kv_topics)

    # frames ------------------------------------------------------------------------------------------------------

    def _append(self, topic: Topic, frame: WalFrame, location: Location) -> None:
        batch = frame.batch
        assert batch is not None
        topic.hold(batch)
        if batch.count:
            check_follows(topic, batch, location)
            if batch.has_gaps:
                topic.note_gaps(batch)
            size = batch.record_bytes
            if batch.last_seq > topic.segmented_seq:
                topic.index.put(batch.first_seq, batch.last_seq, location, ts_ms=frame.ts_ms, record_bytes=size)
                self._table.has_grown(topic)
            topic.record_bytes += size
            topic.staged_bytes = topic.record_bytes
            topic.head_seq = topic.staged_seq = batch.last_seq
        first_seq = frame.first_seq
        writers: dict[str, WriterState] = {}
        for mark in frame.marks:
            if mark.idempotency_key:
                done = KeyedAppend(mark.content_hash, first_seq, first_seq + mark.count - 1, frame.ts_ms)
                topic.keys.commit(mark.idempotency_key, done)
            if mark.writer:
                topic.writers.commit(mark.writer, mark.fence, mark.new, now_ms=frame.ts_ms)
                writers[mark.writer] = WriterState(mark.fence, mark.new)
            first_seq += mark.count
        if topic.kind is Kind.KV and topic.id not in self.behind:
            self._fold_append(topic, batch, writers)

    def _fold_append(self, topic: Topic, batch: Batch, writers: dict[str, WriterState]) -> None:
        last_seq = topic.head_seq
        applied = self._applied.get(topic.id, 0)
        if last_seq > applied or (last_seq == applied and writers):
            entries = entries_of(batch) if batch.count and last_seq > applied else []
            self._pending.append(FoldWrite(topic.id, last_seq, entries, list(writers.items())))
            self._pending_entries += len(entries)
            if self._pending_entries >= REPLAY_ENTRIES_MAX:
                self.flush()

    def _delete_topic(self, topic: Topic, frame: WalFrame) -> None:
        self.flush()
        self._table.remove(topic)
        self.gone[topic.id] = ErasingEntry(topic.id, frame.ts_ms + self._erase_within_ms, topic.kind is Kind.KV)
        self.sources.pop(topic.id, None)
        self.behind.discard(topic.id)
        if topic.id in self._fold.topics():
            self._fold.delete_topic(topic.id)

    def _delete_records(self, topic: Topic, frame: WalFrame) -> None:
        body = decode_delete(_control(frame))
        apply_deletion(topic, body, erase_due_ms=frame.ts_ms + self._erase_within_ms)
        match = body.deletion.match
        if match is not None and topic.kind is Kind.KV and topic.id not in self.behind:
            self.flush()
            erase_entries(self._fold, topic.id, match, body.deletion.through_seq)

    def _change_writer(self, topic: Topic, body: dict[str, str | int], location: Location) -> None:
        name, change = str(body["source"]), body["change"]
        if change == "put":
            self.sources[topic.id] = ReplayedSource(put_definition(topic, body))
        elif change == "delete":
            self.sources.pop(topic.id, None)
            topic.writers.forget(name)
        elif change not in ("orders", "update", "lease"):
            raise NewerFormat(
                f"WAL file {location.file_number:016x}, offset {location.offset}: unknown change "
                f"{change!r} of a source",
                file=f"{location.file_number:016x}.wal",
                offset=location.offset,
            )
        elif (source := self.sources.get(topic.id)) is not None:
            if change == "orders":
                source = source._replace(control=put_control(body), stop=put_stop(body))
            elif change == "update":
                source = source._replace(definition=updated_definition(source.definition, body))
            else:
                fence, holder, lease_ms = int(body["fence"]), str(body["holder"]), int(body["lease_ms"])
                source = source._replace(fence=fence, holder=holder, lease_ms=lease_ms)
            self.sources[topic.id] = source

    def flush(self) -> None:
        """Apply the pending writes to the fold."""
        if self._pending:
            self._fold.apply(self._pending)
            self._applied.update({write.topic_id: write.applied_seq for write in self._pending})
            self._pending = []
            self._pending_entries = 0


def check_follows(topic: Topic, batch: Batch, location: Location) -> None:
    """Check that a frame's records follow the head, or that it is the gap record for the seqs between.

    Raises:
        DataCorrupt: a frame before this one is missing from the log.
    """
    if batch.first_seq == topic.head_seq + 1:
        return
    if batch.count == 1 and batch.ops is not None:
        gap = split_gaps(batch)[0]
        if isinstance(gap, Gap) and (gap.first_seq, gap.last_seq + 1) == (topic.head_seq + 1, batch.first_seq):
            return
    raise DataCorrupt(
        f"WAL file {location.file_number:016x}, offset {location.offset}: seq {batch.first_seq} of topic {topic.name} "
        f"follows {topic.head_seq}: frames between them are missing",
        file=f"{location.file_number:016x}.wal",
        offset=location.offset,
    )


def _has_entries(fold: ReplayedFold, topic_id: int) -> bool:
    view = fold.view(topic_id)
    try:
        return bool(view.next_page(1, 1))
    finally:
        view.close()


def _control(frame: WalFrame) -> dict[str, str | int]:
    assert frame.control is not None
    return frame.control
