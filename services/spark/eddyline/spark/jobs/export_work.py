"""What an export does with a split, in a task: its rows into files (`part_files.py`), its losses and its account told."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from eddyline.core.read import ALL_RECORDS
from eddyline.core.record import Gap, GapReason
from eddyline.spark.channels import NO_ACCESS
from eddyline.spark.jobs.export_files import LOST_LISTED_MAX, Lost
from eddyline.spark.jobs.out_dir import OutDir
from eddyline.spark.jobs.part_files import PartFiles
from eddyline.spark.pull import SplitPull

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from eddyline.core.caller_channel import CallerAccess
    from eddyline.spark.calls import Cluster
    from eddyline.spark.jobs.tasks import Line
    from eddyline.spark.options import OnGap
    from eddyline.spark.pieces import Piece
    from eddyline.spark.plan import ReadPartition

GAP_REFUSED: Final = "GAP"
"""Reason of a split whose gaps are not accepted (`on_gap` = fail)."""


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
            EddylineError: what `SplitPull.items` and `PartFiles.write` raise.
        """
        for piece in partition.pieces:
            yield self._of_piece(cluster, piece)

    def _of_piece(self, cluster: Cluster, piece: Piece) -> Line:
        pull = SplitPull(cluster, piece, records=ALL_RECORDS, columns=[])
        gaps: list[Gap] = []
        parts = PartFiles(OutDir(self.out), piece)
        try:
            parts.write(self._batches(pull.items(), gaps))
        except _GapMet as met:
            lost = lost_of(met.gap)
            return {
                "error": GAP_REFUSED,
                "message": f"topic {piece.topic}: seq {lost.first_seq} to {lost.last_seq} lost ({lost.reason})."
                " --on-gap says what to do: warn (go on, the manifest tells it) or rows (go on, with a row of op GAP too)",
            }
        if self.on_gap == "rows":
            parts.write_gaps(gaps)
        account = pull.account
        return {
            "first": piece.first,
            "rows": account.rows,
            "gaps": account.gaps,
            "deleted": account.deleted + account.hidden,
            "gap_rows": len(gaps) if self.on_gap == "rows" else 0,
            "files": [asdict(file) for file in parts.files],
            "lost": [asdict(lost_of(gap)) for gap in gaps[:LOST_LISTED_MAX]],
        }

    def _batches(self, items: Iterable[pa.RecordBatch | Gap], gaps: list[Gap]) -> Iterator[pa.RecordBatch]:
        for item in items:
            if not isinstance(item, Gap):
                yield item
            elif self.on_gap == "fail":
                raise _GapMet(item)
            else:
                gaps.append(item)


class _GapMet(Exception):
    def __init__(self, gap: Gap) -> None:
        super().__init__()
        self.gap = gap


def lost_of(gap: Gap) -> Lost:
    """A gap as it is told."""
    known = GapReason._value2member_map_.get(gap.reason)
    return Lost(gap.first_seq, gap.last_seq, known.name if known is not None else str(gap.reason))
