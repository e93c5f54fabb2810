"""The files of one split, with what became of it: rows to files (`part_files.py`), its losses and its account as a line.

A split that is written again gives the same files under the same names.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from eddyline.core.model.read import ALL_RECORDS
from eddyline.core.records.record import Gap, GapReason
from eddyline.export.manifest import LOST_LISTED_MAX, LostRange
from eddyline.export.part_files import PartFiles
from eddyline.export.run import GAP_REFUSED, WorkRefused
from eddyline.export.split.pull import SplitPull

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from eddyline.export.out_dir import OutDir
    from eddyline.export.run import Line, OnGap
    from eddyline.export.split.calls import Cluster
    from eddyline.export.split.pieces import TopicSplit


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """Writes splits below `out`."""

    out: OutDir
    on_gap: OnGap

    def write(self, cluster: Cluster, piece: TopicSplit) -> Line:
        """Write the files of a split.

        Raises:
            WorkRefused: GAP: records were lost, and `on_gap` is fail. EddylineError: what `SplitPull.items` and
                `PartFiles.write` raise. OSError: a file cannot be written.
        """
        pull = SplitPull(cluster, piece, records=ALL_RECORDS, columns=[])
        gaps: list[Gap] = []
        parts = PartFiles(self.out, piece)
        parts.write(self._batches(piece.topic, pull.items(), gaps))
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

    def _batches(self, topic: str, items: Iterable[pa.RecordBatch | Gap], gaps: list[Gap]) -> Iterator[pa.RecordBatch]:
        for item in items:
            if not isinstance(item, Gap):
                yield item
            elif self.on_gap == "fail":
                lost = lost_of(item)
                raise WorkRefused(
                    GAP_REFUSED,
                    f"topic {topic}: seq {lost.first_seq} to {lost.last_seq} lost ({lost.reason})."
                    " Set --on-gap: warn (continue and list it in the manifest) or rows (also write a row of op GAP)",
                )
            else:
                gaps.append(item)


def lost_of(gap: Gap) -> LostRange:
    """A gap as JSON values."""
    known = GapReason._value2member_map_.get(gap.reason)
    return LostRange(gap.first_seq, gap.last_seq, known.name if known is not None else str(gap.reason))
