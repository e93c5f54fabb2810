"""The task of fold-as-of: writes the live rows of a share of a fold into one file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eddyline.core.model.read import ALL_RECORDS
from eddyline.export.out_dir import OutDir
from eddyline.export.parquet_file import ROWS_SCHEMA, with_epoch, write_file
from eddyline.export.split.arrow_rows import RowMaker
from eddyline.export.split.channels import NO_ACCESS
from eddyline.export.split.pull import SplitPull
from eddyline.spark.reader.fold import live_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.export.run import Line
    from eddyline.export.split.calls import Cluster
    from eddyline.export.split.pieces import TopicSplit
    from eddyline.spark.reader.plan import ReadPartition


@dataclass(frozen=True, slots=True)
class FoldWork:
    """Writes shares into `directory` of `out`; a line a file."""

    stores: tuple[str, ...]
    patience_s: int
    out: str
    directory: str
    access: CallerAccess = field(default=NO_ACCESS, repr=False)

    def lines(self, cluster: Cluster, partition: ReadPartition, number: int) -> Iterator[Line]:
        """Write a share's file.

        Raises:
            EddylineError: what `SplitPull.items` raises.
        """
        name = f"part-{number:05d}.parquet"
        written = write_file(
            OutDir(self.out), f"{self.directory}/{name}", self._rows(cluster, partition), is_sorted=False
        )
        yield {"name": name, **written._asdict()}

    def _rows(self, cluster: Cluster, partition: ReadPartition) -> Iterator[pa.RecordBatch]:
        def pull_of(piece: TopicSplit) -> SplitPull:
            return SplitPull(cluster, piece, records=ALL_RECORDS, columns=[])

        first = partition.pieces[0]
        maker = RowMaker(first.topic, ROWS_SCHEMA)
        for batch in live_rows(partition.pieces, pull_of):
            yield with_epoch(maker.rows(batch), first.epoch)
