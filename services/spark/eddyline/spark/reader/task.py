"""A task of a read: pulls its pieces one after the other, turns them into rows, and reports or refuses losses.

The same partition gives the same rows to every attempt. Each piece's account goes to the logger `eddyline.spark` at DEBUG:
rows + gaps + deleted + hidden = its range. With worker logging on, `spark.tvf.python_worker_logs()` shows it; the executor's
stderr has losses and retries, and no line for each split.
(Spark 4.3 gives a source in Python no metric of its own, and its tasks no accumulator.)
Failure: `GapFound` where records were lost and nobody said what to do about it; else what `pull` raises. Spark tries the
task again and then fails the job: a short result is never called complete.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from eddyline.core.records.record import Gap, GapReason, Op
from eddyline.export.split.arrow_rows import RowMaker
from eddyline.export.split.calls import Cluster
from eddyline.export.split.pull import SplitPull
from eddyline.spark.reader.batch_sizes import merge_small_batches
from eddyline.spark.reader.fold import live_rows
from eddyline.spark.schema import arrow_schema_of, store_columns
from eddyline.v1 import segment_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from eddyline.core.errors import EddylineError
    from eddyline.core.model.read import RecordFilter
    from eddyline.export.split.pieces import Account, TopicSplit
    from eddyline.spark.options.read import ReadOptions
    from eddyline.spark.reader.plan import ReadPartition

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
        _open_log()
        with Cluster.of(self.options, stores=partition.stores) as cluster:
            rows = self._live_rows if self.options.folds else self._log_rows
            yield from merge_small_batches(rows(cluster, partition))

    def _live_rows(self, cluster: Cluster, partition: ReadPartition) -> Iterator[pa.RecordBatch]:
        for topic, pieces in groupby(partition.pieces, key=attrgetter("topic")):
            maker = RowMaker(topic, arrow_schema_of(self.schema))
            for batch in live_rows(pieces, partial(self._pull, cluster)):
                yield maker.rows(batch)

    def _log_rows(self, cluster: Cluster, partition: ReadPartition) -> Iterator[pa.RecordBatch]:
        makers: dict[str, RowMaker] = {}
        for piece in partition.pieces:
            maker = makers.setdefault(piece.topic, RowMaker(piece.topic, arrow_schema_of(self.schema)))
            pull = self._pull(cluster, piece)
            for item in pull.items():
                if isinstance(item, Gap):
                    if self._tells(item, piece):
                        yield maker.gap_rows([item])
                elif self.options.read != "gaps":
                    yield maker.rows(item)
            _tell_account(piece, pull.account)

    def _pull(self, cluster: Cluster, piece: TopicSplit) -> SplitPull:
        return SplitPull(
            cluster, piece, records=self.wanted(), columns=self.columns(piece), on_retry=partial(_tell, piece)
        )

    def wanted(self) -> RecordFilter:
        """Which records are read; of gaps alone, none."""
        records = self.options.records
        return records if self.options.read != "gaps" else type(records)(ops=(Op.GAP,))

    def columns(self, piece: TopicSplit) -> list[pb.SplitColumn.ValueType]:
        """Which of the store's columns are read. If the data is wanted and nothing is hidden, all columns are pulled: stored
        batches then come as they lie on disk, and the other columns are small compared with the data."""
        if self.options.read == "gaps":
            return [pb.SPLIT_COLUMN_SEQ]
        names = self.schema.fieldNames()
        hides = (
            not self.options.records.passes_all() or piece.source_from_ns or piece.source_end_ns or piece.share_count
        )
        if not {"data", "data_text"}.isdisjoint(names) and not hides:
            return []
        return store_columns(names, always=(pb.SPLIT_COLUMN_KEY, pb.SPLIT_COLUMN_OP) if self.options.folds else ())

    def _tells(self, gap: Gap, piece: TopicSplit) -> bool:
        """True = as a row."""
        if self.options.read == "gaps" or self.options.on_gap == "rows":
            return True
        told = f"topic {piece.topic}: {_shown(gap)}"
        if self.options.on_gap == "warn":
            LOG.warning("records lost: %s", told)
            return False
        raise GapFound(
            f"{told}: these records are not in the result. Set option onGap: fail (the default, this error), warn (log the"
            " gap and continue) or rows (continue with a row of op GAP)"
        )


def _open_log() -> None:
    if LOG.level == logging.NOTSET:
        # somebody who listens has asked for it
        LOG.setLevel(logging.DEBUG if LOG.hasHandlers() else logging.INFO)
    if not LOG.hasHandlers():
        to_stderr = logging.StreamHandler()
        to_stderr.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        LOG.addHandler(to_stderr)


def _shown(gap: Gap) -> str:
    known = GapReason._value2member_map_.get(gap.reason)
    reason = known.name if known is not None else str(gap.reason)
    of_source = f", of its source {gap.source_first} to {gap.source_last or '?'}" if gap.source_first else ""
    return f"seq {gap.first_seq} to {gap.last_seq} lost ({reason}{of_source})"


def _tell_account(piece: TopicSplit, account: Account) -> None:
    LOG.debug(
        "split read: topic=%s first=%d last=%d rows=%d gaps=%d deleted=%d hidden=%d",
        *(piece.topic, piece.first, piece.last, account.rows, account.gaps, account.deleted, account.hidden),
    )


def _tell(piece: TopicSplit, error: EddylineError) -> None:
    LOG.warning("a read of topic %s continues after %s: %s", piece.topic, error.reason, error.message)
