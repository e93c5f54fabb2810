"""Missing revisions in what a consumer brings: which of them are loss, and what is said of it.

* With a limit of messages a subject (every bucket) an old revision goes when its key is written again: a hole is
  superseded, and silent.
* Where the stream may also evict, a hole that reaches below its first revision is overrun: it left before we read it. Not
  so where the message before the hole is younger than the shortest life a message has there: then only a newer write
  of the same key can have removed what followed it, which keeps hot keys of buckets with a time to live silent.
* A stream that keeps every message loses none by itself: every hole is a gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.batch import Batch
from eddyline.core.record import Gap, GapReason
from eddyline.ingest.batch import PlacedGap, gap_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.ingest.batch import Chunk, Jump
    from eddyline.ingest.jetstream import JetStream
    from eddyline.ingest.stream import Stream


class Holes(NamedTuple):
    """Gaps of a chunk. `overrun` = messages left unread, and with them perhaps whole keys: key sets are to be compared.
    `evicted` = the first jump whose messages the stream's limits, its age or a purge took before they were read."""

    gaps: tuple[PlacedGap, ...]
    overrun: bool
    evicted: Jump | None = None


NO_HOLES = Holes((), overrun=False)


def source_gap(stream: Stream, first: int, last: int, reason: GapReason = GapReason.SOURCE_GAP) -> Gap:
    """Revisions `first` to `last` (inclusive) of the stream are lost."""
    assert 0 < first <= last
    return Gap(0, 0, reason, source_identity=stream.identity, source_first=first, source_last=last)


def reason_of_loss(stream: Stream) -> GapReason:
    """Why revisions before the stream's first one are missing."""
    return GapReason.SOURCE_GAP if stream.may_evict else GapReason.SUPERSEDED


def with_misfits(stream: Stream, chunk: Chunk, gaps: Sequence[PlacedGap]) -> Sequence[PlacedGap]:
    """The gaps of a chunk and one for each of its misfits, in order."""
    if not chunk.misfits:
        return gaps
    told = [PlacedGap(misfit.row, source_gap(stream, misfit.revision, misfit.revision)) for misfit in chunk.misfits]
    return sorted([*gaps, *told], key=lambda placed: (placed.row, placed.gap.source_first))


def tail_gap(stream: Stream, at_revision: int, target: int) -> Batch | None:
    """What tells that nothing is left of the revisions behind `at_revision` up to `target`; None = nothing need."""
    if not (stream.plain and stream.history == 0):
        return None
    return Batch.from_rows([gap_record(source_gap(stream, at_revision + 1, target))])


async def find_holes(jetstream: JetStream, stream: Stream, chunk: Chunk) -> Holes:
    """Judge the holes of a chunk; asks for the stream's state at most once, and only where that decides.

    Raises:
        BucketNotFound, NatsUnreachable.
    """
    if not chunk.jumps or not (stream.plain or stream.may_evict):
        return NO_HOLES
    if not stream.may_evict:
        return Holes(_told(stream, chunk.jumps), overrun=False) if stream.history == 0 else NO_HOLES
    now = await jetstream.again(stream)
    lost = [jump for jump in chunk.jumps if _is_overrun(jump, now)]
    evicted = [jump._replace(revision=min(jump.revision, now.first_revision)) for jump in lost]
    first = evicted[0] if evicted else None
    if stream.plain and stream.history == 0:
        return Holes(_told(stream, chunk.jumps), overrun=False, evicted=first)
    return Holes(_told(stream, evicted), overrun=bool(evicted), evicted=first)


def _told(stream: Stream, jumps: Sequence[Jump]) -> tuple[PlacedGap, ...]:
    return tuple(PlacedGap(jump.row, source_gap(stream, jump.after_revision + 1, jump.revision - 1)) for jump in jumps)


def _is_overrun(jump: Jump, stream: Stream) -> bool:
    if stream.first_revision <= jump.after_revision + 1:
        return False
    return stream.lifetime_ns_min == 0 or stream.server_ns - jump.after_ns >= stream.lifetime_ns_min
