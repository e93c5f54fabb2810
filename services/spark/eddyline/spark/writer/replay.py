"""A partition's rows known by their content: cut into appends, digested as they go, put back and skipped.

Rows that were written before are read again and compared by their digest with what the store keeps of them; meanwhile they
go into a file, so that where they turn out to be others the writer can begin anew.
I1: a piece has 1 000 rows at least where there are more, and the bounds of the options at most; one row may be larger.
I2: rows that end too soon are no proof of anything: where a task fails further up, Spark ends its rows as if they were all.
So no piece is marked as the last one, and fewer rows than were written are an error unless the options allow it.
Bounds: a piece and one batch of Spark's in memory, `SPOOL_BYTES_MAX` in the file, past which there is no way back.
Threads: one.
"""

from __future__ import annotations

import tempfile
from collections import deque
from contextlib import ExitStack
from itertools import chain
from typing import IO, TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from eddyline.core.errors import InvalidArgument
from eddyline.core.records.arrow import arrow_schema, from_arrow, to_arrow
from eddyline.core.records.batch import Batch
from eddyline.core.records.column import size_array
from eddyline.spark.writer.partition import IN_FLIGHT_MAX, RowChunk
from eddyline.spark.writer.position import RowDigest, RowPosition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from eddyline.spark.options.write import OnDifferentRows

SPOOL_BYTES_MAX: Final = 8 << 30
"""Rows that an earlier attempt wrote, kept until they are known to be the same. A partition of this size is far too large
anyway; without a bound it would fill the executor's disk."""


class ReplayableRows:
    """Rows of `batches`, of the micro-batch `run`; unless other rows `fail`, it can go back to the first one until they are
    known to be the same. The caller must close it."""

    def __init__(
        self, batches: Iterable[Batch], *, run: int = 0, records_max: int, bytes_max: int, on_different: OnDifferentRows
    ) -> None:
        self._input: Iterator[Batch] = iter(batches)
        self._run = run
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._keeps = on_different != "fail"
        self._takes_fewer = on_different == "appendFewer"
        self._ready: deque[Batch] = deque()
        self._digest = RowDigest()
        self._spool: _Spool | None = None
        self._files = ExitStack()
        self._digests: deque[tuple[int, RowDigest]] = deque(maxlen=IN_FLIGHT_MAX)
        self.ordinal = 0
        """Rows before the next piece."""

    def next_piece(self) -> RowChunk | None:
        batch = self._take(self._records_max)
        if batch is None:
            return None
        # A piece that is under way may come back, with the digest as it was before it.
        self._digests.append((self.ordinal, self._digest.copy()))
        first = self.ordinal
        self._pass(batch)
        return RowChunk(batch, first, RowPosition(self._run, self.ordinal, self._digest.digest()))

    def resume(self, stored: RowPosition | None, unsettled: Sequence[RowChunk]) -> bool:
        if unsettled:
            self._go_back(unsettled)
        if stored is None:
            return self.ordinal == 0
        if self._spool is None and self._keeps and self.ordinal == 0:
            self._spool = _Spool(self._files)
        while self.ordinal < stored.ordinal:
            batch = self._take(min(self._records_max, stored.ordinal - self.ordinal))
            if batch is None:
                return self._ended_before(stored)
            if self._spool is not None:
                self._spool.add(batch)
            self._pass(batch)
        if self.ordinal != stored.ordinal or self._digest.digest() != stored.digest:
            return False
        self._spool = None
        return True

    def rewind(self) -> bool:
        if self._spool is None or not self._spool.is_whole:
            return False
        spool, self._spool = self._spool, None
        self._input = chain(spool.batches(), tuple(self._ready), self._input)
        self._ready.clear()
        self._digests.clear()
        self._digest = RowDigest()
        self.ordinal = 0
        return True

    def close(self) -> None:
        """Give the files back."""
        self._files.close()

    def _ended_before(self, stored: RowPosition) -> bool:
        if self._takes_fewer:
            return False
        raise InvalidArgument(
            f"its rows end at {self.ordinal}, and an earlier attempt wrote {stored.ordinal}: an earlier step of this "
            "task failed, the source returns fewer rows now, or its partitions changed; option onDifferentRows=appendFewer "
            "writes these rows again",
            field="rows",
        )

    def _go_back(self, unsettled: Sequence[RowChunk]) -> None:
        first = unsettled[0].first
        self._digest = next(digest for ordinal, digest in self._digests if ordinal == first)
        self._digests.clear()
        self._ready.extendleft(piece.batch for piece in reversed(unsettled))
        self.ordinal = first

    def _pass(self, batch: Batch) -> None:
        self._digest.add(batch)
        self.ordinal += batch.count

    def _is_over(self) -> bool:
        while not self._ready:
            batch = next(self._input, None)
            if batch is None:
                return True
            if batch.count:
                self._ready.append(batch)
        return False

    def _take(self, records: int) -> Batch | None:
        """The next rows, `records` at most; small batches are joined."""
        taken: list[Batch] = []
        count = nbytes = 0
        while count < records and nbytes < self._bytes_max and not self._is_over():
            batch = self._ready.popleft()
            fitting = min(records - count, _rows_within(batch, self._bytes_max - nbytes), batch.count)
            if taken and fitting == 0:
                self._ready.appendleft(batch)
                break
            fitting = max(fitting, 1)
            if fitting < batch.count:
                self._ready.appendleft(batch.slice(fitting, batch.count))
                batch = batch.slice(0, fitting)
            taken.append(batch)
            count += batch.count
            nbytes += batch.nbytes
        return Batch.concat(taken) if taken else None


class _Spool:
    """Batches in a file without a name, which `files` closes."""

    def __init__(self, files: ExitStack) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="eddyline-write-")  # noqa: SIM115  # `files` closes it
        files.enter_context(self._file)
        self._writer = pa.ipc.new_stream(self._file, arrow_schema())
        self.is_whole = True

    def add(self, batch: Batch) -> None:
        if self.is_whole:
            self._writer.write_batch(to_arrow(batch))
            self.is_whole = self._file.tell() <= SPOOL_BYTES_MAX

    def batches(self) -> Iterator[Batch]:
        """All of them, once."""
        self._writer.close()
        self._file.seek(0)
        yield from map(from_arrow, pa.ipc.open_stream(self._file))


def _rows_within(batch: Batch, nbytes: int) -> int:
    """How many of the first rows have `nbytes` together at most."""
    if batch.nbytes <= nbytes:
        return batch.count
    sizes = np.zeros(batch.count, dtype=np.int64)
    for column in batch.columns():
        if column is not None:
            sizes += size_array(column)
    return int(np.searchsorted(np.cumsum(sizes), nbytes, side="right"))
