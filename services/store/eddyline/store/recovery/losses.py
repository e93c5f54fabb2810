"""Lost bytes of the log: their proofs, and one UNSYNCED gap record a topic, fdatasynced before the store serves.

Bytes may be lost after a power-up, if the fold is ahead of the log, if the log ends before its written mark
(`storage/wal/written_mark.py`), or, without a mark, if non-zero bytes were cut from the log's end. The boot id alone proves
nothing: a detached volume, a snapshot of a live one and a damaged last frame lose bytes within one boot.

Each DISK topic with reserved seqs gets a gap up to the end of its reservation: every seq that may have been acknowledged is
below it, so none is assigned twice. An FSYNC topic has no reservation, and loses nothing unless synced bytes are lost
without a power-up; then its head skips as many seqs as a reservation has. If the fold is ahead, the gap's frame also moves
the writers' positions: the next replay finds the fold and the log at one seq, and would take the log's positions otherwise.
A base is then made too, since the log lacks records that the fold has. An EPHEMERAL topic loses its records at every start;
a floor of its own reports that: its head moves to its reservation, and no frame is logged.
Threading: synchronous; runs before the store serves.
"""

from __future__ import annotations

import logging
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.model.topic import Durability, Kind
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.core.runtime.logging import fields
from eddyline.store.fold.fold import FoldWrite
from eddyline.store.log.control import SegmentChange, segment_change_body
from eddyline.store.log.topic import RESERVATION_SEQS
from eddyline.store.recovery.replay import REPLAY_ENTRIES_MAX
from eddyline.store.storage.wal.frame import AppendMark, FrameBody, FrameType, append_body, control_body
from eddyline.store.storage.wal.scan import WalEnd
from eddyline.store.storage.wal.written_mark import run_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eddyline.store.fold.fold import Fold
    from eddyline.store.log.table import TopicTable
    from eddyline.store.log.topic import Topic
    from eddyline.store.recovery.replay import Replay
    from eddyline.store.storage.identity import Identity
    from eddyline.store.storage.wal.wal import Wal
    from eddyline.store.storage.wal.written_mark import WrittenMark

logger = logging.getLogger(__name__)

_AHEAD: Final = "the fold has records that the log lacks"
_MARK_IS_GONE: Final = (
    "the last run was killed, and its mark of the written bytes is missing from TMPDIR: keep that directory across process "
    "restarts"
)


class LostBytes(NamedTuple):
    """Possible losses of a WAL shard. `unsynced` = bytes written but not synced; `synced` = synced ones too. `last_seqs` =
    by topic id, seqs that cut frames mention. `reason` = the proof, as text; "" = nothing is lost."""

    unsynced: bool = False
    synced: bool = False
    last_seqs: Mapping[int, int] = {}
    reason: str = ""


def find_losses(
    previous: Identity | None, boot_id: str, *, replay: Replay, wals: Sequence[Wal], mark: WrittenMark | None
) -> list[LostBytes]:
    """Return the possible losses of each WAL shard, by the last run's identity and the replay's results."""
    if previous is None:
        reason = "the file identity is missing" if replay.frame_count else ""
        return [LostBytes(unsynced=replay.frame_count > 0, reason=reason)] * len(wals)
    if previous.clean and not replay.fold_is_ahead:
        return [LostBytes()] * len(wals)
    if previous.clean or previous.boot_id != boot_id:
        reason = _AHEAD if previous.clean else "the machine rebooted after a run without a clean stop"
        return [LostBytes(unsynced=True, last_seqs=wal.tail.last_seqs, reason=reason) for wal in wals]
    runs = (previous.instance, previous.instance + 1)  # a start that was cut off may have begun its own already
    marks = (
        [mark.read(run_name(boot_id, run), len(wals)) for run in runs] if previous.marked and mark is not None else []
    )
    written = next((positions for positions in marks if positions is not None), None)
    losses = list[LostBytes]()
    for shard, wal in enumerate(wals):
        unsynced, synced = previous.marked or wal.tail.is_cut, wal.tail.is_cut
        if written is not None:
            number, file_bytes, synced_bytes = written[shard]
            unsynced = not wal.holds(WalEnd(number, file_bytes))
            synced = not wal.holds(WalEnd(number, synced_bytes))
        reason = _AHEAD if replay.fold_is_ahead else ""
        if unsynced:
            reason = (
                _MARK_IS_GONE if previous.marked and written is None else "the log ends before the last written byte"
            )
        losses.append(LostBytes(unsynced or replay.fold_is_ahead, synced, wal.tail.last_seqs, reason))
    return losses


class _Loss(NamedTuple):
    topic: Topic
    batch: Batch
    bodies: list[FrameBody]


def log_losses(*, table: TopicTable, fold: Fold, wals: Sequence[Wal], lost: Sequence[LostBytes], now_ms: int) -> int:
    """Log the possible losses, `lost` for each WAL shard. Returns the number of gaps written."""
    losses: list[list[_Loss]] = [[] for _ in wals]
    writes = list[FoldWrite]()
    if any(one.synced for one in lost):  # a topic's creation may be lost: its id must not be assigned again
        table.skip_ids(table.next_id + RESERVATION_SEQS)
    for topic in table.all():
        if topic.is_ephemeral:
            _forget_memory(topic)
            table.dirty.add(topic)
            continue
        applied = fold.applied(topic.id) if topic.kind is Kind.KV else 0
        shard_lost = lost[topic.id % len(wals)]
        bound = max(applied, _last_seq(topic, shard_lost))
        if not shard_lost.unsynced or bound <= topic.head_seq:
            continue
        is_ahead = applied > topic.head_seq
        marks = _positions_ahead(topic, fold) if is_ahead else ()
        for mark in marks:
            topic.writers.commit(mark.writer, mark.fence, mark.new, now_ms=now_ms)
        gap = Gap(topic.head_seq + 1, bound, GapReason.UNSYNCED)
        batch = Batch.from_rows([Record(op=Op.GAP, data=encode_gap(gap))])
        placed = batch.with_seqs(bound + 1, max(topic.last_ts_ms, now_ms))
        bodies = [append_body(topic.id, placed, marks)]
        if is_ahead:  # first, so that no gap is in the log without it
            bodies.insert(0, _base_wanted(topic, placed.ts_ms))
            topic.base_wanted = True
            table.segmented.add(topic)
        losses[topic.id % len(wals)].append(_Loss(topic, placed, bodies))
        if topic.kind is Kind.KV:
            writes.append(FoldWrite(topic.id, placed.last_seq, [], []))
    for wal, logged in zip(wals, losses, strict=True):
        _log(table, wal, logged)
    for topic, _, _ in (loss for logged in losses for loss in logged):
        table.dirty.add(topic)
    for start in range(0, len(writes), REPLAY_ENTRIES_MAX):
        fold.apply(writes[start : start + REPLAY_ENTRIES_MAX])
    if gaps := sum(map(len, losses)):
        reason = "; ".join(sorted({one.reason for one in lost if one.reason}))
        logger.warning("acknowledged records may be lost", extra=fields(gaps=gaps, reason=reason))
    return gaps


def _last_seq(topic: Topic, lost: LostBytes) -> int:
    """Return the highest seq of a topic that may have been acknowledged; 0 = none above its head."""
    cut = lost.last_seqs.get(topic.id, 0)
    if topic.config.durability is Durability.DISK:
        return max(topic.reserved_seq, cut)
    return max(topic.head_seq, cut) + RESERVATION_SEQS if lost.synced else 0


def _log(table: TopicTable, wal: Wal, losses: Sequence[_Loss]) -> None:
    if not losses:
        return
    group = wal.place([body for loss in losses for body in loss.bodies])
    wal.write(group)
    wal.sync()
    ends = accumulate(len(loss.bodies) for loss in losses)
    for (topic, placed, _), end in zip(losses, ends, strict=True):
        location = group.locations[end - 1]
        topic.note_gaps(placed)
        table.has_grown(topic)
        topic.index.put(placed.first_seq, placed.last_seq, location, ts_ms=placed.ts_ms)
        topic.oldest_ts_ms = topic.oldest_ts_ms or placed.ts_ms
        topic.head_seq = topic.staged_seq = placed.last_seq
        topic.last_ts_ms = placed.ts_ms


def _base_wanted(topic: Topic, ts_ms: int) -> FrameBody:
    """Make the frame that requests a base: the fold has records that the log lacks."""
    change = SegmentChange("unsynced", topic.next_generation, base_wanted=True)
    return control_body(FrameType.SEGMENT_CHANGE, topic.id, segment_change_body(change), ts_ms=ts_ms)


def _forget_memory(topic: Topic) -> None:
    head_seq = max(topic.head_seq, topic.reserved_seq)
    topic.head_seq = topic.staged_seq = topic.reserved_seq = topic.staged_reserved_seq = head_seq
    topic.floors = topic.floors.raised(ephemeral=head_seq)
    topic.record_bytes = topic.staged_bytes = 0
    topic.has_records = False
    topic.index.drop_through(head_seq)


def _positions_ahead(topic: Topic, fold: Fold) -> tuple[AppendMark, ...]:
    """Return the writer positions in which the fold is ahead of the log, as marks of a frame of one record."""
    states = sorted(fold.writers(topic.id).items())
    positions = [(writer, topic.writers.get(writer), state) for writer, state in states]
    moves = [
        (writer, logged, state)
        for writer, logged, state in positions
        if state.position != logged.position or state.fence > logged.fence
    ]
    return tuple(
        AppendMark(
            count=int(number == 0),
            writer=writer,
            fence=state.fence,
            previous=logged.position,
            new=state.position,
        )
        for number, (writer, logged, state) in enumerate(moves)
    )
