"""Lost bytes of the log: what proves them, and one UNSYNCED gap record a topic, fdatasynced before anything is served.

Bytes may be gone after a power-up, where the fold is ahead of the log, where the log ends before its written mark
(`storage/written_mark.py`), or, where no mark says more, where other bytes than zeros were cut from its end. The boot id
alone proves nothing: a volume that was detached, a snapshot of a live one and a damaged last frame lose bytes in one boot.

Each DISK topic that had seqs reserved gets its gap behind its reservation: every seq that may have been acknowledged is
below it, so none is ever given again. An FSYNC topic has no reservation, and loses nothing unless synced bytes are gone
without a power-up; then its head skips as many seqs as a reservation has. Where the fold is ahead its positions move in the
gap's frame, or the next replay, which finds the fold level with the log, would set them back to the log's; and a base is
wanted, since the log does not give what the fold has. An EPHEMERAL topic's records are gone at every start, told by a floor
of its own: its head goes to its reservation, and nothing needs to be logged for that.
Threading: synchronous; runs before the loop serves.
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

_AHEAD: Final = "the fold has records that the log has not"
_MARK_IS_GONE: Final = (
    "the last run was killed, and what it left in the directory of TMPDIR to tell what it had written is not there: let "
    "that directory outlive the process"
)


class LostBytes(NamedTuple):
    """What may be gone of a WAL shard. `unsynced` = bytes that were handed to the kernel; `synced` = synced ones too.
    `last_seqs` = by topic id, seqs that cut frames spoke of. `reason` = what proves it, for people; "" = nothing is gone."""

    unsynced: bool = False
    synced: bool = False
    last_seqs: Mapping[int, int] = {}
    reason: str = ""


def find_losses(
    before: Identity | None, boot_id: str, *, replay: Replay, wals: Sequence[Wal], mark: WrittenMark | None
) -> list[LostBytes]:
    """What may be gone of each WAL shard, as the last run's identity and all that was replayed tell."""
    if before is None:
        reason = "the file identity is missing" if replay.frame_count else ""
        return [LostBytes(unsynced=replay.frame_count > 0, reason=reason)] * len(wals)
    if before.clean and not replay.fold_is_ahead:
        return [LostBytes()] * len(wals)
    if before.clean or before.boot_id != boot_id:
        reason = _AHEAD if before.clean else "the machine started anew after a run that had no clean stop"
        return [LostBytes(unsynced=True, last_seqs=wal.tail.last_seqs, reason=reason) for wal in wals]
    runs = (before.instance, before.instance + 1)  # a start that was cut off may have begun its own already
    marks = [mark.read(run_name(boot_id, run), len(wals)) for run in runs] if before.marked and mark is not None else []
    known = next((one for one in marks if one is not None), None)
    losses = list[LostBytes]()
    for shard, wal in enumerate(wals):
        unsynced, synced = before.marked or wal.tail.is_cut, wal.tail.is_cut
        if known is not None:
            number, file_bytes, synced_bytes = known[shard]
            unsynced = not wal.holds(WalEnd(number, file_bytes))
            synced = not wal.holds(WalEnd(number, synced_bytes))
        reason = _AHEAD if replay.fold_is_ahead else ""
        if unsynced:
            reason = _MARK_IS_GONE if before.marked and known is None else "the log ends before what was written"
        losses.append(LostBytes(unsynced or replay.fold_is_ahead, synced, wal.tail.last_seqs, reason))
    return losses


class _Loss(NamedTuple):
    topic: Topic
    batch: Batch
    bodies: list[FrameBody]


def log_losses(*, table: TopicTable, fold: Fold, wals: Sequence[Wal], lost: Sequence[LostBytes], now_ms: int) -> int:
    """Log what may be gone, `lost` of each WAL shard; the number of gaps written."""
    losses: list[list[_Loss]] = [[] for _ in wals]
    writes = list[FoldWrite]()
    if any(one.synced for one in lost):  # a topic's creation may be gone: its id is not given again
        table.skip_ids(table.next_id + RESERVATION_SEQS)
    for topic in table.all():
        if topic.is_ephemeral:
            _forget_memory(topic)
            table.dirty.add(topic)
            continue
        applied = fold.applied(topic.id) if topic.kind is Kind.KV else 0
        found = lost[topic.id % len(wals)]
        bound = max(applied, _last_seq(topic, found))
        if not found.unsynced or bound <= topic.head_seq:
            continue
        is_ahead = applied > topic.head_seq
        marks = _positions_ahead(topic, fold) if is_ahead else ()
        for mark in marks:
            topic.writers.commit(mark.writer, mark.fence, mark.new, now_ms=now_ms)
        gap = Gap(topic.head_seq + 1, bound, GapReason.UNSYNCED)
        batch = Batch.from_rows([Record(op=Op.GAP, data=encode_gap(gap))])
        placed = batch.with_seqs(bound + 1, max(topic.last_ts_ms, now_ms))
        bodies = [append_body(topic.id, placed, marks)]
        if is_ahead:  # first, so that no gap is there without it
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
    """The highest seq of a topic that may have been acknowledged; 0 = none beyond its head."""
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
    """The frame that says: what the fold has beyond the log is in no log; a base of it is to be made."""
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
