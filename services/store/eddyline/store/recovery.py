"""Recovery: from the WAL's frames to topics, sources and fold, before anything is served.

Replay decides nothing: it applies frames in order and reads no clock. What depends on the machine (were bytes lost?) is
decided after it, and logged: one UNSYNCED gap record a topic, fdatasynced before serving.

I1: recovering twice gives the same state. I2: a fold ahead of its log (after power loss) is right: the head moves past it
and its positions win. I3: nothing is destroyed by being unknown.
Threading: synchronous; runs before the loop serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.batch import Batch
from eddyline.core.errors import DataCorrupt
from eddyline.core.gap import encode_gap, split_gaps
from eddyline.core.record import Gap, GapReason, Op, Record
from eddyline.core.source import SourceDefinition
from eddyline.core.topic import Durability, Kind, TopicConfig
from eddyline.store.fold.fold import FoldWrite, WriterState
from eddyline.store.fold.project import entries_of
from eddyline.store.log.dedupe import KeyBudget, KeyedAppend
from eddyline.store.log.table import TopicTable
from eddyline.store.log.topic import Topic
from eddyline.store.storage.frame import AppendMark, FrameType, append_body

if TYPE_CHECKING:
    from eddyline.store.fold.fold import Fold
    from eddyline.store.sources import Sources
    from eddyline.store.storage.frame import Frame
    from eddyline.store.storage.wal import Location, Wal

REPLAY_ENTRIES_MAX: Final = 4096


class Replay:
    """Takes the WAL's frames in order and rebuilds what they say."""

    def __init__(self, *, table: TopicTable, sources: Sources, fold: Fold) -> None:
        self._table = table
        self._sources = sources
        self._fold = fold
        self._applied = dict(fold.topics())
        self._pending: list[FoldWrite] = []
        self._pending_entries = 0
        self.frame_count = 0
        self.fold_is_ahead = False

    def frame(self, frame: Frame, location: Location) -> None:
        """Apply one frame. A frame of a topic that a later frame deletes is applied too, and goes with it."""
        self.frame_count += 1
        if frame.type == FrameType.TOPIC_CREATE:
            self._table.add(topic_of(frame.topic_id, _control(frame), frame.ts_ms, self._table.key_budget))
            return
        topic = self._table.by_id(frame.topic_id)
        if topic is None:
            return
        topic.last_ts_ms = max(topic.last_ts_ms, frame.ts_ms)
        if frame.type == FrameType.APPEND:
            self._append(topic, frame, location)
        elif frame.type == FrameType.TOPIC_DELETE:
            self._delete(topic)
        elif frame.type == FrameType.HEAD_WATERMARK:
            topic.reserved_seq = topic.staged_reserved_seq = frame.first_seq
        elif frame.type == FrameType.WRITER_CHANGE:
            change_writer(self._sources, topic, _control(frame))

    def finish(self) -> None:
        """Bring the fold up and forget in it what the log has deleted.

        A topic whose log lost all its records is not empty where its fold has kept some.

        Raises:
            DataCorrupt: the fold knows a topic that the log never made.
        """
        self._flush()
        for topic_id in self._fold.topics():
            if self._table.by_id(topic_id) is not None:
                continue
            if not self._table.saw_id(topic_id):
                raise DataCorrupt(
                    f"the fold has topic {topic_id}, which the WAL never made: is this the fold's own data directory?",
                    file="fold",
                    offset=0,
                )
            self._fold.delete_topic(topic_id)
        for topic in self._table.all():
            if not topic.has_records and self._fold.applied(topic.id):
                topic.has_records = _has_entries(self._fold, topic.id)
        kv_topics = [topic for topic in self._table.all() if topic.kind is Kind.KV]
        self.fold_is_ahead = any(self._applied.get(topic.id, 0) > topic.head_seq for topic in kv_topics)

    def _append(self, topic: Topic, frame: Frame, location: Location) -> None:
        batch = frame.batch
        assert batch is not None
        topic.hold(batch)
        if batch.count:
            check_follows(topic, batch, location)
            topic.index.add(batch.first_seq, batch.last_seq, location)
            topic.head_seq = topic.staged_seq = batch.last_seq
        first_seq = frame.first_seq
        writers: dict[str, WriterState] = {}
        for mark in frame.marks:
            if mark.has_key:
                done = KeyedAppend(mark.content_hash, first_seq, first_seq + mark.count - 1, frame.ts_ms)
                topic.keys.commit(mark.idempotency_key, done)
            if mark.has_writer:
                topic.writers.commit(mark.writer, mark.fence, mark.new)
                writers[mark.writer] = WriterState(mark.fence, mark.new)
            first_seq += mark.count
        last_seq = topic.head_seq
        applied = self._applied.get(topic.id, 0)
        if topic.kind is Kind.KV and (last_seq > applied or (last_seq == applied and writers)):
            entries = entries_of(batch) if batch.count and last_seq > applied else []
            self._pending.append(FoldWrite(topic.id, last_seq, entries, list(writers.items())))
            self._pending_entries += len(entries)
            if self._pending_entries >= REPLAY_ENTRIES_MAX:
                self._flush()

    def _delete(self, topic: Topic) -> None:
        self._flush()
        self._sources.remove(topic.source)
        self._table.remove(topic)
        if topic.id in self._fold.topics():
            self._fold.delete_topic(topic.id)

    def _flush(self) -> None:
        if self._pending:
            self._fold.apply(self._pending)
            self._applied.update({write.topic_id: write.applied_seq for write in self._pending})
            self._pending = []
            self._pending_entries = 0


def check_follows(topic: Topic, batch: Batch, location: Location) -> None:
    """A frame's records follow those before it, or it is the gap record that says what lies between.

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


def settle_losses(*, table: TopicTable, fold: Fold, wal: Wal, bytes_lost: bool, now_ms: int) -> int:
    """Log what power loss took; the number of gaps written. `bytes_lost`: it may have taken something.

    Each DISK topic that had seqs reserved gets one UNSYNCED gap record behind its reservation: every seq that may have been
    acknowledged is below it, so none is ever given again. Where the fold is ahead its positions move in the gap's frame, or
    the next replay, which finds the fold level with the log, would set them back to the log's.
    """
    bodies, writes = [], list[FoldWrite]()
    for topic in table.all():
        applied = fold.applied(topic.id) if topic.kind is Kind.KV else 0
        bound = max(topic.reserved_seq, applied) if topic.needs_reservation else applied
        if not bytes_lost or bound <= topic.head_seq:
            continue
        marks = _positions_ahead(topic, fold) if applied > topic.head_seq else ()
        for mark in marks:
            topic.writers.commit(mark.writer, mark.fence, mark.new)
        gap = Gap(topic.head_seq + 1, bound, GapReason.UNSYNCED)
        batch = Batch.from_rows([Record(op=Op.GAP, data=encode_gap(gap))])
        ts_ms = max(topic.last_ts_ms, now_ms)
        placed = batch.with_place(bound + 1, ts_ms)
        bodies.append((topic, placed, append_body(topic.id, placed, marks)))
        if topic.kind is Kind.KV:
            writes.append(FoldWrite(topic.id, placed.last_seq, [], []))
    if not bodies:
        return 0
    group = wal.place([body for _, _, body in bodies])
    wal.write(group)
    wal.sync()
    for (topic, placed, _), location in zip(bodies, group.locations, strict=True):
        topic.index.add(placed.first_seq, placed.last_seq, location)
        topic.head_seq = topic.staged_seq = placed.last_seq
        topic.last_ts_ms = placed.ts_ms
    for start in range(0, len(writes), REPLAY_ENTRIES_MAX):
        fold.apply(writes[start : start + REPLAY_ENTRIES_MAX])
    return len(bodies)


def _has_entries(fold: Fold, topic_id: int) -> bool:
    view = fold.view(topic_id)
    try:
        return bool(view.next_page(1, 1))
    finally:
        view.close()


def _positions_ahead(topic: Topic, fold: Fold) -> tuple[AppendMark, ...]:
    """The moves that the fold has beyond the log's, as marks of a frame of one record."""
    states = sorted(fold.writers(topic.id).items())
    found = [(writer, topic.writers.get(writer), state) for writer, state in states]
    moves = [
        (w, known, state) for w, known, state in found if state.position != known.position or state.fence > known.fence
    ]
    return tuple(
        AppendMark(
            count=int(number == 0),
            writer=writer,
            fence=state.fence,
            previous=known.position,
            new=state.position,
        )
        for number, (writer, known, state) in enumerate(moves)
    )


def topic_body(name: str, kind: Kind, config: TopicConfig) -> dict[str, str | int]:
    """The body of a TopicCreate frame."""
    return {
        "durability": config.durability.name,
        "idempotency_window_ms": config.idempotency_window_ms,
        "kind": kind.name,
        "name": name,
    }


def topic_of(topic_id: int, body: dict[str, str | int], create_ts_ms: int, key_budget: KeyBudget) -> Topic:
    """The topic that a TopicCreate frame made."""
    config = TopicConfig(
        durability=Durability[str(body["durability"])],
        idempotency_window_ms=int(body["idempotency_window_ms"]),
    )
    return Topic(
        name=str(body["name"]),
        topic_id=topic_id,
        kind=Kind[str(body["kind"])],
        config=config,
        create_ts_ms=create_ts_ms,
        key_budget=key_budget,
    )


def change_writer(sources: Sources, topic: Topic, body: dict[str, str | int]) -> None:
    """Apply a WriterChange frame, live or on replay: `put`, `lease` or `delete` of a source."""
    name, change = str(body["source"]), body["change"]
    if change == "put":
        sources.add(SourceDefinition(name, topic.name, str(body["bucket"])), topic)
    elif change == "delete":
        sources.remove(name)
    elif (source := sources.find(name)) is not None:
        sources.leased(source, fence=int(body["fence"]), holder=str(body["holder"]), lease_ms=int(body["lease_ms"]))


def _control(frame: Frame) -> dict[str, str | int]:
    assert frame.control is not None
    return frame.control
