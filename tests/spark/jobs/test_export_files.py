"""Names, plans and manifests of exports: what they say is read back, and what does not hold is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import DataCorrupt, InvalidArgument
from eddyline.export.manifest import (
    History,
    Manifest,
    Plan,
    Span,
    history_of,
    leftovers,
    manifest_name,
    part_name,
    plan_from_json,
    plan_name,
    plan_to_json,
    temporary_names,
    topic_dir,
)
from eddyline.export.split.pieces import TopicSplit

pytestmark = pytest.mark.spark


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=20), st.integers(1, 1 << 60))
def test_a_plan_is_read_back_as_it_was_written(lengths: list[int], first: int) -> None:
    splits, at = [], first
    for length in lengths:
        splits.append((at, at + length - 1, length, 7))
        at += length
    plan = Plan(Span("routes", 5, first, at), tuple(splits), 1_000)
    assert plan_from_json(plan_to_json(plan), "x") == plan
    assert Plan.of(plan.span, plan.pieces(), created_ms=1_000) == plan


@pytest.mark.parametrize(
    "splits", [(), ((1, 4, 4, 0),), ((2, 10, 9, 0),), ((1, 4, 4, 0), (6, 10, 5, 0)), ((1, 6, 6, 0), (6, 10, 5, 0))]
)
def test_a_plan_whose_splits_do_not_cover_its_range_is_refused(splits: tuple[tuple[int, int, int, int], ...]) -> None:
    with pytest.raises(DataCorrupt, match="do not cover"):
        plan_from_json(plan_to_json(Plan(Span("routes", 5, 1, 11), splits, 1_000)), "x")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"format": 2}', b'{"format": 1}', b'{"format": 1, "splits": 3}']
)
def test_what_is_no_plan_is_refused(content: bytes) -> None:
    with pytest.raises(DataCorrupt, match="x"):
        plan_from_json(content, "x")


def test_a_manifest_that_does_not_close_cannot_be_made() -> None:
    span = Span("routes", 5, 1, 11)
    Manifest(span, 7, 2, 1, ())
    with pytest.raises(AssertionError, match="I2"):
        Manifest(span, 7, 2, 0, ())


def test_history_gives_bookmarks_and_plans_that_are_not_carried_out() -> None:
    spans = [Span("a:b", 4, 1, 9), Span("a:b", 7, 1, 11), Span("a:b", 7, 11, 21)]
    names = [manifest_name(span) for span in reversed(spans)] + [
        plan_name("a:b", 7, 11),
        plan_name("a:b", 7, 21),
        "x/y",
    ]
    history = history_of("a:b", names)
    assert history == History(tuple(spans), ((7, 21),))
    assert (history.bookmark(7), history.bookmark(4), history.bookmark(5)) == (21, 9, None)
    assert (history.other_epoch(7), history.other_epoch(4)) == (4, 7)


def test_a_manifest_that_is_missing_between_others_is_reported() -> None:
    names = [manifest_name(Span("routes", 4, 1, 9)), manifest_name(Span("routes", 4, 11, 21))]
    with pytest.raises(DataCorrupt, match=r"9 is next, but .* starts at 11"):
        history_of("routes", names)


def test_leftovers_are_those_of_the_range_alone() -> None:
    span = Span("routes", 5, 11, 31)
    kept = part_name(TopicSplit("routes", 5, 11, 20), "2026-01-01")
    stale = part_name(TopicSplit("routes", 5, 11, 20), "2026-01-02")
    begun = part_name(TopicSplit("routes", 5, 21, 30), "2026-01-01").replace("part-", "_part-") + ".0a1b.tmp"
    others = [
        part_name(TopicSplit("routes", 5, 1, 10), "2026-01-01"),
        part_name(TopicSplit("routes", 4, 11, 20), "2026-01-01"),
        part_name(TopicSplit("routes", 5, 31, 40), "2026-01-01"),
        "topic=routes/day=2026-01-01/somebody-elses.parquet",
    ]
    assert leftovers([kept, stale, begun, *others], span, [kept]) == [stale]
    assert temporary_names([kept, stale, begun, *others]) == [begun]


def test_a_topics_directory_reads_in_hives_form() -> None:
    assert topic_dir("a:b.c-d_e") == "topic=a%3Ab.c-d_e"
    with pytest.raises(InvalidArgument, match="too long"):
        topic_dir("a" * 250)
