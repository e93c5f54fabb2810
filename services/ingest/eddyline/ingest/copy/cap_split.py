"""A batch that its topic's cap can never hold, applied in parts, each of which is a batch of its own.

A cap bounds each append, and a source's batch is as large as what arrived meanwhile. If the rows are messages, each part
moves the position to its last one, so a crash between two parts neither loses nor repeats any. If they are synthetic
changes the position stays, and a crash starts them over, which their callers allow.
Threading: event loop.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from eddyline.core.errors import RecordTooLarge
from eddyline.core.records.record import Op
from eddyline.ingest.copy.position import StreamPosition, decode_position

if TYPE_CHECKING:
    from eddyline.core.records.batch import Batch
    from eddyline.core.telemetry.tracing import OpenSpan
    from eddyline.ingest.copy.forward import Forward


def exceeds_cap(error: RecordTooLarge) -> bool:
    """True = the append is too large for the topic's cap, not for a bound of records."""
    return "capRecords" in error.metadata


async def apply_within_cap(
    forward: Forward, batch: Batch | None, new: StreamPosition, *, moves: bool, trace: OpenSpan | None = None
) -> None:
    """Apply a batch and move to `new`, in parts if the topic's cap is smaller. `moves` = each row's version, gaps aside, is
    the revision that it moves the position to.

    Raises:
        RecordTooLarge: a part of one record exceeds the cap. As `Forward.apply`.
    """
    try:
        await forward.apply(batch, new, trace)
    except RecordTooLarge as error:
        row = _cut(batch) if batch is not None and exceeds_cap(error) else 0
        if batch is None or not row:
            raise
        between = _moved(batch, row, new) if moves else _stays(forward, new)
        await apply_within_cap(forward, batch.slice(0, row), between, moves=moves, trace=trace)
        await apply_within_cap(forward, batch.slice(row, batch.count), new, moves=moves, trace=trace)


def _cut(batch: Batch) -> int:
    """Row before which the batch is cut, near the middle; 0 = none. A gap stays with the row that it precedes."""
    middle = batch.count // 2
    ends = (batch.ops_array()[:-1] != Op.GAP).nonzero()[0] + 1
    return int(ends[abs(ends - middle).argmin()]) if len(ends) else 0


def _moved(batch: Batch, row: int, new: StreamPosition) -> StreamPosition:
    """The position after the rows before `row`, without a sample."""
    (last,) = batch.slice(row - 1, row).to_rows()
    revision = int.from_bytes(last.version, "big")
    # No message of a part is younger than the youngest of the batch.
    return StreamPosition(new.created_ns, revision, resync_serial=new.resync_serial, time_ns=new.time_ns)


def _stays(forward: Forward, new: StreamPosition) -> StreamPosition:
    """A position at the stored revision that differs from the stored one and from `new`."""
    stored = decode_position(forward.stored) or replace(new, revision=0, sample=bytes(16))
    between = stored.after_changes()
    return between if between != new else between.after_changes()
