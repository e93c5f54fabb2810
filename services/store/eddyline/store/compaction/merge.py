"""Merge policy: chooses neighbouring small segments of one topic to merge into one.

Sealing by age and at checkpoints leaves small files, each with its name, footer and open. Neighbours are merged if there are
at least `NEIGHBOURS_MIN`, they fit into one segment by its bounds, and together they are at least twice as large as the
largest of them; of several such runs the one with the smallest segments goes first.

I1: a merge at least doubles the segment that holds a row, so a row is written again at most log2(whole / first) times:
10 times from 64 KiB to 64 MiB. Segments of one size merge four at a time, which is log4: 5 times from 64 KiB.
I2: unmerged segments are bounded: of four neighbours that fit into one segment one is larger than the others together.
Rejected: tiers by powers of four that merge only neighbours of one tier: small segments between two larger ones would stay
small.
Threading: pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.store.storage.segment.footer import SegmentSummary

NEIGHBOURS_MIN: Final = 4
"""[RocksDB's universal compaction 2, Cassandra's size tiers 4] Fewer at a time double the number of times that a row is
written; more leave more small files."""
NEIGHBOURS_MAX: Final = 256
"""Files of one merge at most; they are read one after the other."""
LOOKS_MAX: Final = 20_000
"""Ends of runs examined, 5 ms of the event loop, before the best so far is taken."""


class MergeRun(NamedTuple):
    """Neighbours: from index `start` up to `stop`, exclusive."""

    start: int
    stop: int


def weight_of(summary: SegmentSummary, *, records_max: int, bytes_max: int) -> int:
    """Return a segment's size as a share of `bytes_max`, in bytes: by records or by bytes, whichever is more."""
    return max(summary.record_bytes, summary.rows * bytes_max // records_max, 1)


def merge_due(summaries: Sequence[SegmentSummary], *, records_max: int, bytes_max: int) -> MergeRun | None:
    """Return the run to merge first; None = no merge is due."""
    weights = [weight_of(summary, records_max=records_max, bytes_max=bytes_max) for summary in summaries]
    best: MergeRun | None = None
    best_largest, looks = bytes_max, 0
    for start in range(len(weights) - NEIGHBOURS_MIN + 1):
        if best is not None and looks > LOOKS_MAX:
            break
        total = largest = 0
        for stop in range(start + 1, min(start + NEIGHBOURS_MAX, len(weights)) + 1):
            looks += 1
            weight = weights[stop - 1]
            total, largest = total + weight, max(largest, weight)
            if total > bytes_max or largest > best_largest:
                break
            if stop - start >= NEIGHBOURS_MIN and total >= 2 * largest:
                is_longer = best is None or stop - start > best.stop - best.start
                if largest < best_largest or is_longer:
                    best, best_largest = MergeRun(start, stop), largest
    return best
