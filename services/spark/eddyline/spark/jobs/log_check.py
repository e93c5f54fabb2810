"""The task of an audit for a split of a log: checks that seqs and commit times are in order and each seq is accounted
for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.core.errors import DataCorrupt
from eddyline.core.model.read import ALL_RECORDS
from eddyline.core.records.record import Gap
from eddyline.export.split.channels import NO_ACCESS
from eddyline.export.split.pull import SplitPull
from eddyline.export.split_files import lost_of
from eddyline.v1 import segment_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.export.run import Line
    from eddyline.export.split.calls import Cluster
    from eddyline.export.split.pieces import TopicSplit
    from eddyline.spark.reader.plan import ReadPartition

LOST_MAX: Final = 100
"""Ranges that a split's line lists."""
_COLUMNS: Final = (pb.SPLIT_COLUMN_SEQ, pb.SPLIT_COLUMN_TS, pb.SPLIT_COLUMN_VERSION)


@dataclass(frozen=True, slots=True)
class LogCheck:
    """Reads pieces; a line a piece. A split that is damaged or out of order is a `finding`."""

    stores: tuple[str, ...]
    patience_s: int
    access: CallerAccess = field(default=NO_ACCESS, repr=False)

    def lines(self, cluster: Cluster, partition: ReadPartition, number: int) -> Iterator[Line]:
        """Check each piece.

        Raises:
            EddylineError: it cannot be read; wrong content is reported in its line.
        """
        for piece in partition.pieces:
            check = _PieceCheck(piece)
            try:
                yield check.line(cluster, self)
            except DataCorrupt as error:
                yield {"first": piece.first, "last": piece.last, "finding": error.message}


class _PieceCheck:
    def __init__(self, piece: TopicSplit) -> None:
        self._piece = piece
        self._last_seq = piece.first - 1
        self._first_ts = self._last_ts = 0
        self._versions = 0
        self._lost: list[Gap] = []
        self._gap_count = 0

    def line(self, cluster: Cluster, check: LogCheck) -> Line:
        pull = SplitPull(cluster, self._piece, records=ALL_RECORDS, columns=_COLUMNS)
        for item in pull.items():
            if isinstance(item, Gap):
                self._gap_count += 1
                self._lost += [item] if len(self._lost) < LOST_MAX else []
            elif item.num_rows:
                self._take(item)
        account = pull.account
        return {
            "first": self._piece.first,
            "last": self._piece.last,
            "rows": account.rows,
            "gaps": account.gaps,
            "deleted": account.deleted + account.hidden,
            "gap_count": self._gap_count,
            "lost": [asdict(lost_of(gap)) for gap in self._lost],
            "versions": self._versions,
            "first_ts": self._first_ts,
            "last_ts": self._last_ts,
        }

    def _take(self, batch: pa.RecordBatch) -> None:
        seqs = batch.column("seq").to_numpy().astype(np.int64)
        times = batch.column("ts").cast(pa.int64()).to_numpy()
        self._check_order("seq", seqs, self._last_seq, strictly=True)
        self._check_order("commit time", times, self._last_ts, strictly=False)
        self._last_seq = int(seqs[-1])
        self._first_ts, self._last_ts = self._first_ts or int(times[0]), int(times[-1])
        self._versions += int(pc.sum(pc.greater(pc.binary_length(batch.column("version")), 0)).as_py())

    def _check_order(self, what: str, numbers: NDArray[np.int64], before: int, *, strictly: bool) -> None:
        steps = np.diff(numbers, prepend=before)
        if (steps < 1).any() if strictly else (steps < 0).any():
            at = int(np.argmax(steps < 1) if strictly else np.argmax(steps < 0))
            raise DataCorrupt(
                f"topic {self._piece.topic}, split {self._piece.first} to {self._piece.last}: {what} {numbers[at]} comes"
                f" after {numbers[at - 1] if at else before}"
            )
