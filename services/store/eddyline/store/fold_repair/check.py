"""Checking a fold: it is made a second time of base and log, elsewhere, and the two are compared key by key.

I1: nothing of the store is changed, whatever is found. I2: a step is one write or one page, some milliseconds at most, so
that a check runs beside a busy store. I3: memory is that of a piece of the log and two pages; the second fold takes as much
disk as the first.
Rate: 0.18 M log records/s, both halves together, on a core at 2.3 GHz with others busy beside it.
Threading: any one thread, blocking; knows no engine, so that it also checks a directory that nobody serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.model.fold_check import FINDINGS_MAX, FoldVerdict, VerifyProgress
from eddyline.store.fold_repair.compare import Finding, FindingKind, FoldComparison
from eddyline.store.fold_repair.rebuild import rebuild

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eddyline.store.fold.fold import Fold, FoldView
    from eddyline.store.fold_repair.source import FoldSource

CHECK_ROWS: Final = 512
"""Rows of a source's piece: half a millisecond of RocksDB's write, which holds the GIL. It costs a quarter of the rate."""
_KEY_SHOWN: Final = 64


class FoldCheck:
    """One check of one topic's fold."""

    def __init__(self, topic_id: int, *, source: FoldSource, found: FoldView, scratch: Fold) -> None:
        """Check that `found` shows what `source` gives at its `through_seq`; `scratch`, an empty fold, is written to.

        The caller closes all three.
        """
        self._topic_id = topic_id
        self._source = source
        self._found = found
        self._scratch = scratch
        self._rebuilding: Iterator[int] | None = rebuild(scratch, topic_id, source)
        self._comparing: FoldComparison | None = None
        self._replayed_seq = 0

    @property
    def progress(self) -> VerifyProgress:
        """How far it is."""
        compared = self._comparing.entries if self._comparing is not None else 0
        return VerifyProgress(self._replayed_seq, self._source.through_seq, compared)

    def step(self) -> bool:
        """Do a little; False = all is done.

        Raises:
            DataCorrupt: base, log or fold are damaged. FoldFailed, FoldStalled: of the scratch.
        """
        if self._comparing is not None:
            return self._comparing.step()
        assert self._rebuilding is not None
        replayed_seq = next(self._rebuilding, None)
        if replayed_seq is not None:
            self._replayed_seq = replayed_seq
            return True
        self._rebuilding = None
        expected = self._scratch.view(self._topic_id, counted=False)
        self._comparing = FoldComparison(expected, self._found, findings_max=FINDINGS_MAX)
        return True

    def verdict(self) -> FoldVerdict:
        """What was found, once all is done."""
        assert self._comparing is not None, "the check is done"
        outcome = self._comparing.outcome()
        return FoldVerdict(
            fold_seq=self._source.through_seq,
            base_seq=self._source.base_seq,
            entry_count=outcome.entries,
            differing_count=outcome.missing + outcome.extra + outcome.differing,
            findings=tuple(map(_line, outcome.findings)),
        )


def run_fold_check(topic_id: int, *, source: FoldSource, found: FoldView, scratch: Fold) -> FoldVerdict:
    """The verdict, in one go.

    Raises:
        DataCorrupt, FoldFailed, FoldStalled.
    """
    check = FoldCheck(topic_id, source=source, found=found, scratch=scratch)
    while check.step():
        pass
    return check.verdict()


def _line(finding: Finding) -> str:
    key = finding.key[:_KEY_SHOWN]
    shown = repr(key)[1:] + ("..." if len(finding.key) > _KEY_SHOWN else "")
    if finding.kind is FindingKind.MISSING:
        return f"key {shown} is missing"
    if finding.kind is FindingKind.EXTRA:
        return f"key {shown} is there and should not be"
    return f"key {shown} differs in {', '.join(finding.fields)}"
