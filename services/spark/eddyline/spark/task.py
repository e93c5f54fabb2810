"""What a task does: pulls its pieces one after the other, makes rows of them, and tells or refuses what was lost.

The same partition gives the same rows to every attempt. Each piece's account goes to the logger `eddyline.spark` at INFO
(`spark.tvf.python_worker_logs()` shows it where worker logging is on): rows + gaps + deleted + hidden = its range.
Failure: `GapFound` where records were lost and nobody said what to do about it; else what `pull` raises. Spark tries the
task again and then fails the job: a short result is never called complete.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from eddyline.core.record import Gap, GapReason, Op
from eddyline.spark.arrow_rows import RowMaker
from eddyline.spark.batch_sizes import sized
from eddyline.spark.calls import Cluster
from eddyline.spark.pull import SplitPull
from eddyline.spark.schema import store_columns
from eddyline.v1 import segment_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from eddyline.core.errors import EddylineError
    from eddyline.core.read import RecordFilter
    from eddyline.spark.options import ReadOptions
    from eddyline.spark.pieces import Account, Piece
    from eddyline.spark.plan import ReadPartition

LOG: Final = logging.getLogger("eddyline.spark")


class GapFound(Exception):
    """Records of the range were lost, and `onGap` is `fail`."""


@dataclass(frozen=True, slots=True)
class Task:
    """How partitions are read: the same for all of a read."""

    options: ReadOptions
    schema: StructType

    def read(self, partition: ReadPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's rows.

        Raises:
            GapFound: records were lost.
            EddylineError: what `SplitPull.items` raises.
        """
        LOG.setLevel(min(LOG.level or logging.INFO, logging.INFO))
        with Cluster(self.options.stores, patience_s=self.options.patience_s, stores=partition.stores) as cluster:
            yield from sized(self._rows(cluster, partition))

    def _rows(self, cluster: Cluster, partition: ReadPartition) -> Iterator[pa.RecordBatch]:
        makers: dict[str, RowMaker] = {}
        for piece in partition.pieces:
            maker = makers.setdefault(piece.topic, RowMaker(piece.topic, self.schema))
            pull = SplitPull(
                cluster, piece, records=self.wanted(), columns=self.columns(piece), on_retry=partial(_tell, piece)
            )
            for item in pull.items():
                if isinstance(item, Gap):
                    if self._tells(item, piece):
                        yield maker.gap_rows([item])
                elif self.options.read != "gaps":
                    yield maker.rows(item)
            _tell_account(piece, pull.account)

    def wanted(self) -> RecordFilter:
        """Which records are read; of gaps alone, none."""
        records = self.options.records
        return records if self.options.read != "gaps" else type(records)(ops=(Op.GAP,))

    def columns(self, piece: Piece) -> list[pb.SplitColumn.ValueType]:
        """Which of the store's columns are read. Where the data is wanted and nothing is hidden all are: then stored batches
        come as they lie on disk, and what the rest of a record takes is little beside them."""
        if self.options.read == "gaps":
            return [pb.SPLIT_COLUMN_SEQ]
        names = self.schema.fieldNames()
        untouched = self.options.records.passes_all() and not (piece.source_from_ns or piece.source_end_ns)
        return [] if untouched and "data" in names else store_columns(names, always=())

    def _tells(self, gap: Gap, piece: Piece) -> bool:
        """True = as a row."""
        if self.options.read == "gaps" or self.options.on_gap == "rows":
            return True
        told = f"topic {piece.topic}: {_shown(gap)}"
        if self.options.on_gap == "warn":
            LOG.warning("records lost: %s", told)
            return False
        raise GapFound(
            f"{told}. Nothing was read wrongly, and this is not in the result. The option onGap says what to do: fail (as"
            f" here), warn (go on, and log it) or rows (go on, with a row of op GAP)"
        )


def _shown(gap: Gap) -> str:
    known = GapReason._value2member_map_.get(gap.reason)
    reason = known.name if known is not None else str(gap.reason)
    of_source = f", of its source {gap.source_first} to {gap.source_last or '?'}" if gap.source_first else ""
    return f"seq {gap.first_seq} to {gap.last_seq} lost ({reason}{of_source})"


def _tell_account(piece: Piece, account: Account) -> None:
    LOG.info(
        "split read: topic=%s first=%d last=%d rows=%d gaps=%d deleted=%d hidden=%d",
        *(piece.topic, piece.first, piece.last, account.rows, account.gaps, account.deleted, account.hidden),
    )


def _tell(piece: Piece, error: EddylineError) -> None:
    LOG.warning("a read of topic %s goes on after %s: %s", piece.topic, error.reason, error.message)
