"""Comparison of two folds, compared with the plain rule on dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.records.fold_entry import encode_entry
from eddyline.core.records.record import MetaEntry, Op, Record
from eddyline.store.fold.fold import FoldWrite
from eddyline.store.fold.rocksdb import RocksFold
from eddyline.store.fold_repair import compare as module
from eddyline.store.fold_repair.compare import FindingKind, FoldComparison, FoldDifference, KeyFinding
from tests.support.sim.fold import SimFold

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from eddyline.store.fold.fold import Fold, FoldView

FIELDS = ("seq", "ts_ms", "source_ts_ns", "data", "tag", "node", "meta", "version")


def filled(rows: dict[bytes, Record], fold: Fold | None = None) -> Fold:
    fold = fold or SimFold(0)
    entries: list[tuple[bytes, bytes | None]] = [(key, encode_entry(row)) for key, row in rows.items()]
    fold.apply([FoldWrite(1, 1, entries, [])])
    return fold


def compare(left: FoldView, right: FoldView, *, findings_max: int, progress: list[int] | None = None) -> FoldDifference:
    """Compare two views to their end; `progress` gets the number of keys compared after each page."""
    comparing = FoldComparison(left, right, findings_max=findings_max)
    while comparing.step():
        if progress is not None:
            progress.append(comparing.entries)
    return comparing.outcome()


def outcome(left: dict[bytes, Record], right: dict[bytes, Record], findings_max: int) -> FoldDifference:
    """The plain rule."""
    findings = []
    for key in sorted(left.keys() | right.keys()):
        if key not in right:
            findings.append(KeyFinding(key, FindingKind.MISSING))
        elif key not in left:
            findings.append(KeyFinding(key, FindingKind.EXTRA))
        elif left[key] != right[key]:
            fields = tuple(name for name in FIELDS if getattr(left[key], name) != getattr(right[key], name))
            findings.append(KeyFinding(key, FindingKind.DIFFERING, fields))
    missing, extra, differing = ([finding.kind for finding in findings].count(kind) for kind in FindingKind)
    return FoldDifference(len(left.keys() | right.keys()), missing, extra, differing, tuple(findings[:findings_max]))


KEYS = st.binary(min_size=1, max_size=2)
ROWS = st.dictionaries(
    KEYS,
    st.builds(
        lambda seq, ts_ms, data, tag, version: Record(seq, ts_ms, 0, Op.PUT, None, data, tag, version=version),
        st.integers(1, 2),
        st.integers(1, 2),
        st.sampled_from([None, b"", b"x"]),
        st.sampled_from([None, "t"]),
        st.sampled_from([b"", b"v"]),
    ),
    max_size=20,
).map(lambda rows: {key: row._replace(key=key) for key, row in rows.items()})


@given(ROWS, ROWS, st.booleans(), st.integers(0, 5), st.integers(1, 5))
def test_result_equals_the_plain_rule(
    left: dict[bytes, Record], right: dict[bytes, Record], alike: bool, findings_max: int, page_entries: int
) -> None:
    right = {**left, **dict(list(right.items())[:2])} if alike else right
    views = filled(left).view(1), filled(right).view(1)
    old, module.PAGE_ENTRIES = module.PAGE_ENTRIES, page_entries  # type: ignore[misc]
    try:
        assert compare(*views, findings_max=findings_max) == outcome(left, right, findings_max)
    finally:
        module.PAGE_ENTRIES = old  # type: ignore[misc]


def test_every_differing_field_is_reported() -> None:
    left = Record(1, 2, 3, Op.PUT, b"k", b"d", "t", "n", (MetaEntry("a", b""),), b"v")
    right = Record(2, 3, 4, Op.PUT, b"k")
    (finding,) = compare(filled({b"k": left}).view(1), filled({b"k": right}).view(1), findings_max=1).findings
    assert finding == KeyFinding(b"k", FindingKind.DIFFERING, FIELDS)


def test_equal_folds_of_both_kinds_are_equal_and_progress_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE_ENTRIES", 100)
    rows = {b"%03d" % i: Record(i + 1, 1, 0, Op.PUT, b"%03d" % i, b"x", version=b"v" * (i % 2)) for i in range(250)}
    rocks, progress = filled(rows, RocksFold(tmp_path)), list[int]()
    compared = compare(filled(rows).view(1), rocks.view(1), findings_max=5, progress=progress)
    rocks.close()
    assert compared == FoldDifference(250, 0, 0, 0, ())
    assert compared.equal
    assert progress == [100, 200, 250]


def test_findings_are_bounded_and_all_counted() -> None:
    rows = {b"%05d" % i: Record(i + 1, 1, 0, Op.PUT, b"%05d" % i) for i in range(10_000)}
    compared = compare(filled(rows).view(1), filled({}).view(1), findings_max=3)
    assert (compared.entries, compared.missing, compared.extra, compared.differing) == (10_000, 10_000, 0, 0)
    assert [finding.key for finding in compared.findings] == [b"00000", b"00001", b"00002"]
    assert not compared.equal
