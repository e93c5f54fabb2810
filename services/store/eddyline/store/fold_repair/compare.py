"""Two folds' views compared, key by key: what is missing, what is too much, what differs.

Both are read once, in order, a page of each at a time, so memory is that of two pages and the findings kept. Pages that are
equal whole, as nearly all are, are never looked at row by row.
Threading: as the views', which their maker closes.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.records.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.records.batch import Batch
    from eddyline.store.fold.fold import FoldView

PAGE_ENTRIES: Final = 4096
PAGE_BYTES: Final = 1 << 20
_FIELDS: Final = tuple((index, name) for index, name in enumerate(Record._fields) if name not in ("op", "key"))


class FindingKind(IntEnum):
    """What is wrong with a key."""

    MISSING = 1
    """Expected and not found."""
    EXTRA = 2
    """Found and not expected."""
    DIFFERING = 3


class Finding(NamedTuple):
    """One key that is not as expected; `fields` of `Record` that differ, where both sides have it."""

    key: bytes
    kind: FindingKind
    fields: tuple[str, ...] = ()


class FoldDifference(NamedTuple):
    """The outcome: keys looked at on either side, how many of them are wrong in which way, and the first findings by key."""

    entries: int
    missing: int
    extra: int
    differing: int
    findings: tuple[Finding, ...]

    @property
    def equal(self) -> bool:
        """True = nothing is wrong."""
        return not (self.missing or self.extra or self.differing)


def compare(
    expected: FoldView, found: FoldView, *, findings_max: int, progress: Callable[[int], None] | None = None
) -> FoldDifference:
    """Compare what the views have still to give; `progress` is called a page, with the keys looked at so far.

    Raises:
        DataCorrupt, FoldFailed.
    """
    comparing = FoldComparison(expected, found, findings_max=findings_max)
    while comparing.step():
        if progress is not None:
            progress(comparing.entries)
    return comparing.outcome()


class _Side:
    """One view: the rows of its page that are still to be compared."""

    def __init__(self, view: FoldView) -> None:
        self._view = view
        self._ended = False
        self.rows: deque[Record] = deque()

    def page(self) -> Batch:
        batch = self._view.next_batch(PAGE_ENTRIES, PAGE_BYTES)
        self._ended = not batch.count
        return batch

    def take(self, page: Batch) -> None:
        self.rows.extend(page.to_rows())

    @property
    def known(self) -> bool:
        """What the next row is, or that there is none."""
        return bool(self.rows) or self._ended


class FoldComparison:
    """A comparison under way, a page at a time."""

    def __init__(self, expected: FoldView, found: FoldView, *, findings_max: int) -> None:
        self._expected = _Side(expected)
        self._found = _Side(found)
        self._findings_max = findings_max
        self._findings: list[Finding] = []
        self._counts = dict.fromkeys(FindingKind, 0)
        self.entries = 0

    def step(self) -> bool:
        """Compare up to the end of a page. False = there was nothing left.

        Raises:
            DataCorrupt, FoldFailed.
        """
        expected, found = self._expected, self._found
        if not expected.rows and not found.rows:
            left, right = expected.page(), found.page()
            if left == right:
                self.entries += left.count
                return left.count > 0
            expected.take(left)
            found.take(right)
        for side in (expected, found):
            if not side.known:
                side.take(side.page())
        while expected.known and found.known and (expected.rows or found.rows):
            self._compare_next()
        return True

    def outcome(self) -> FoldDifference:
        """What was found so far."""
        counts = self._counts
        return FoldDifference(
            self.entries,
            counts[FindingKind.MISSING],
            counts[FindingKind.EXTRA],
            counts[FindingKind.DIFFERING],
            tuple(self._findings),
        )

    def _compare_next(self) -> None:
        """The smaller key of the two next rows."""
        expected, found = self._expected.rows, self._found.rows
        self.entries += 1
        if not found or (expected and _key(expected[0]) < _key(found[0])):
            self._note(Finding(_key(expected.popleft()), FindingKind.MISSING))
        elif not expected or _key(found[0]) < _key(expected[0]):
            self._note(Finding(_key(found.popleft()), FindingKind.EXTRA))
        else:
            left, right = expected.popleft(), found.popleft()
            if left != right:
                fields = tuple(name for index, name in _FIELDS if left[index] != right[index])
                self._note(Finding(_key(left), FindingKind.DIFFERING, fields))

    def _note(self, finding: Finding) -> None:
        self._counts[finding.kind] += 1
        if len(self._findings) < self._findings_max:
            self._findings.append(finding)


def _key(row: Record) -> bytes:
    assert row.key is not None, "an entry has a key"
    return row.key
