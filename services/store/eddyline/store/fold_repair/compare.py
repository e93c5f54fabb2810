"""Comparison of two folds' views, key by key: missing, extra and differing entries.

Both views are read once, in order, a page of each at a time, so memory is that of two pages and the findings kept. Pages
that are equal, as nearly all are, are never compared row by row.
Threading: as the views', which the caller closes.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.records.record import Record

if TYPE_CHECKING:
    from eddyline.core.records.batch import Batch
    from eddyline.store.fold.fold import FoldView

PAGE_ENTRIES: Final = 4096
PAGE_BYTES: Final = 1 << 20
_FIELDS: Final = tuple((index, name) for index, name in enumerate(Record._fields) if name not in ("op", "key"))


class FindingKind(IntEnum):
    """Kind of difference for a key."""

    MISSING = 1
    """Expected, but absent."""
    EXTRA = 2
    """Present, but not expected."""
    DIFFERING = 3


class KeyFinding(NamedTuple):
    """One key that is not as expected; `fields` of `Record` that differ, if both sides have the key."""

    key: bytes
    kind: FindingKind
    fields: tuple[str, ...] = ()


class FoldDifference(NamedTuple):
    """Result of a comparison: keys compared on either side, how many of them are wrong in which way, and the first
    findings by key."""

    entries: int
    missing: int
    extra: int
    differing: int
    findings: tuple[KeyFinding, ...]

    @property
    def equal(self) -> bool:
        """Whether all compared keys are equal."""
        return not (self.missing or self.extra or self.differing)


class _ViewCursor:
    """One view, and the rows of its page that are still to be compared."""

    def __init__(self, view: FoldView) -> None:
        self._view = view
        self._ended = False
        self.rows: deque[Record] = deque()

    def page(self) -> Batch:
        batch = self._view.next_batch(PAGE_ENTRIES, PAGE_BYTES)
        self._ended = not batch.count
        return batch

    def load(self, page: Batch) -> None:
        self.rows.extend(page.to_rows())

    @property
    def is_loaded(self) -> bool:
        """Whether the next row, or the end, has been read."""
        return bool(self.rows) or self._ended


class FoldComparison:
    """A comparison in progress, a page at a time."""

    def __init__(self, expected: FoldView, actual: FoldView, *, findings_max: int) -> None:
        self._expected = _ViewCursor(expected)
        self._actual = _ViewCursor(actual)
        self._findings_max = findings_max
        self._findings: list[KeyFinding] = []
        self._counts = dict.fromkeys(FindingKind, 0)
        self.entries = 0

    def step(self) -> bool:
        """Compare up to the end of a page. Return False if both views have ended.

        Raises:
            DataCorrupt, FoldFailed.
        """
        expected, actual = self._expected, self._actual
        if not expected.rows and not actual.rows:
            left, right = expected.page(), actual.page()
            if left == right:
                self.entries += left.count
                return left.count > 0
            expected.load(left)
            actual.load(right)
        for side in (expected, actual):
            if not side.is_loaded:
                side.load(side.page())
        while expected.is_loaded and actual.is_loaded and (expected.rows or actual.rows):
            self._compare_next()
        return True

    def outcome(self) -> FoldDifference:
        """Return the result so far."""
        counts = self._counts
        return FoldDifference(
            self.entries,
            counts[FindingKind.MISSING],
            counts[FindingKind.EXTRA],
            counts[FindingKind.DIFFERING],
            tuple(self._findings),
        )

    def _compare_next(self) -> None:
        """Compare the smaller key of the two next rows."""
        expected, actual = self._expected.rows, self._actual.rows
        self.entries += 1
        if not actual or (expected and _key(expected[0]) < _key(actual[0])):
            self._record(KeyFinding(_key(expected.popleft()), FindingKind.MISSING))
        elif not expected or _key(actual[0]) < _key(expected[0]):
            self._record(KeyFinding(_key(actual.popleft()), FindingKind.EXTRA))
        else:
            left, right = expected.popleft(), actual.popleft()
            if left != right:
                fields = tuple(name for index, name in _FIELDS if left[index] != right[index])
                self._record(KeyFinding(_key(left), FindingKind.DIFFERING, fields))

    def _record(self, finding: KeyFinding) -> None:
        self._counts[finding.kind] += 1
        if len(self._findings) < self._findings_max:
            self._findings.append(finding)


def _key(row: Record) -> bytes:
    assert row.key is not None, "an entry has a key"
    return row.key
