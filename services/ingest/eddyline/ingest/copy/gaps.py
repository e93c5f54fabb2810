"""Missing revisions in a consumer's messages: which of them are loss, and the gaps that report them.

* With a limit of messages a subject (every bucket) an old revision leaves when its key is written again: such a gap is
  superseded, and not reported.
* Unless it was purged: missing revisions below the first revision that newer writes do not explain (`why_lost`).
* If the stream may also evict, missing revisions below its first revision are overrun: they left before they were read.
  Not so if the message before them is younger than the shortest life a message has there: then only a newer write of the
  same key can have removed its successors, so hot keys of buckets with a time to live report nothing.
* A stream that keeps every message loses none by newer writes: all missing revisions are gaps.

UNSYNCED gaps, for records that the store lost, are in the store's `recovery/losses.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason
from eddyline.ingest.copy.batch import PlacedGap, gap_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.ingest.copy.batch import Chunk, Jump
    from eddyline.ingest.nats.jetstream import JetStream
    from eddyline.ingest.nats.stream import Stream


class Gaps(NamedTuple):
    """Gaps of a chunk. `overrun` = messages left unread, and perhaps whole keys with them: key sets have to be compared.
    `evicted` = the first jump whose messages the stream's limits, its age or a purge removed before they were read."""

    gaps: tuple[PlacedGap, ...]
    overrun: bool
    evicted: Jump | None = None


NO_GAPS = Gaps((), overrun=False)


def source_gap(stream: Stream, first: int, last: int, reason: GapReason = GapReason.SOURCE_GAP) -> Gap:
    """A gap over revisions `first` to `last` (inclusive) of the stream."""
    assert 0 < first <= last
    return Gap(0, 0, reason, source_identity=stream.identity, source_first=first, source_last=last)


async def why_lost(jetstream: JetStream, stream: Stream, *, gone: bool = False) -> GapReason:
    """Why revisions before the stream's first one are missing: SUPERSEDED if newer writes of the same keys can have removed
    all of them, else SOURCE_GAP. `gone` = keys are known to have left, the newest message of each with them.

    The settings do not reveal a purge. Evidence is an empty stream, or that no key has as many messages as the stream
    keeps of one, so that no newer write can have displaced one. A purge of a bucket that keeps one, whose keys were all
    written again, cannot be distinguished from those writes, and is reported like them.

    Raises:
        BucketNotFound, NatsUnreachable.
    """
    if gone or stream.may_evict or stream.history == 0 or stream.message_count == 0:
        return GapReason.SOURCE_GAP
    if stream.history > 1 and (await jetstream.subjects(stream)).most < stream.history:
        return GapReason.SOURCE_GAP
    return GapReason.SUPERSEDED


def with_unfit_gaps(stream: Stream, chunk: Chunk, gaps: Sequence[PlacedGap]) -> Sequence[PlacedGap]:
    """The gaps of a chunk and one for each of its unfit messages, in order."""
    if not chunk.unfit:
        return gaps
    unfit_gaps = [
        PlacedGap(message.row, source_gap(stream, message.revision, message.revision)) for message in chunk.unfit
    ]
    return sorted([*gaps, *unfit_gaps], key=lambda placed: (placed.row, placed.gap.source_first))


def tail_gap(stream: Stream, after_revision: int, target: int) -> Batch | None:
    """Gap record for the revisions behind `after_revision` up to `target`, which are gone; None = none is due."""
    if not (stream.plain and stream.history == 0):
        return None
    return Batch.from_rows([gap_record(source_gap(stream, after_revision + 1, target))])


async def find_gaps(jetstream: JetStream, stream: Stream, chunk: Chunk) -> Gaps:
    """Classify the missing revisions of a chunk. Reads the stream's state at most once, and its subjects, only if that
    decides.

    Raises:
        BucketNotFound, NatsUnreachable.
    """
    if not chunk.jumps or not (stream.plain or stream.may_evict):
        return NO_GAPS
    if not stream.may_evict and stream.history == 0:
        return Gaps(_placed_gaps(stream, chunk.jumps), overrun=False)
    current = await jetstream.refresh(stream)
    lost = [jump for jump in chunk.jumps if _is_overrun(jump, current)]
    if (
        lost
        and await why_lost(jetstream, current, gone=current.subject_count < stream.subject_count)
        is GapReason.SUPERSEDED
    ):
        return NO_GAPS
    evicted = [jump._replace(revision=min(jump.revision, current.first_revision)) for jump in lost]
    first = evicted[0] if evicted else None
    if stream.plain and stream.history == 0:
        return Gaps(_placed_gaps(stream, chunk.jumps), overrun=False, evicted=first)
    return Gaps(_placed_gaps(stream, evicted), overrun=bool(evicted), evicted=first)


def _placed_gaps(stream: Stream, jumps: Sequence[Jump]) -> tuple[PlacedGap, ...]:
    return tuple(PlacedGap(jump.row, source_gap(stream, jump.after_revision + 1, jump.revision - 1)) for jump in jumps)


def _is_overrun(jump: Jump, stream: Stream) -> bool:
    if stream.first_revision <= jump.after_revision + 1:
        return False
    is_bounded = stream.may_evict and stream.lifetime_ns_min > 0
    return not is_bounded or stream.server_ns - jump.after_ns >= stream.lifetime_ns_min
