"""The task of the job `export`: writes the files of each split of a partition, by `eddyline.export`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eddyline.export.out_dir import OutDir
from eddyline.export.split.channels import NO_ACCESS
from eddyline.export.split_files import SplitFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.export.run import Line, OnGap
    from eddyline.export.split.calls import Cluster
    from eddyline.spark.reader.plan import ReadPartition


@dataclass(frozen=True, slots=True)
class ExportWork:
    """Writes pieces below `out`; a line a piece."""

    stores: tuple[str, ...]
    patience_s: int
    out: str
    on_gap: OnGap
    access: CallerAccess = field(default=NO_ACCESS, repr=False)

    def lines(self, cluster: Cluster, partition: ReadPartition, number: int) -> Iterator[Line]:
        """Write each piece's files.

        Raises:
            WorkRefused, EddylineError: as `SplitFiles.write`.
        """
        files = SplitFiles(OutDir(self.out), self.on_gap)
        for piece in partition.pieces:
            yield files.write(cluster, piece)
