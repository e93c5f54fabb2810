"""Splits of a fold at a point: base and history, and their replacement by a later base."""

from __future__ import annotations

import pytest

from eddyline.core.errors import CursorAhead, FoldLost, HistoryGone, InvalidArgument
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Op, Record
from eddyline.store.splits.model import PlanRequest, Split, SplitKind
from tests.support.store.simulated import LOG_PLACES, LogPlace, PlacedStore, append, placed_store, puts
from tests.support.store.split_reads import planned, read_split

CAPPED = TopicConfig(cap_records=2)


async def filled(store: PlacedStore, config: TopicConfig = CAPPED) -> None:
    """Append: a, b and c are "1" at 1 to 3, a is "2" at 4, b is deleted at 5, d is "1" at 6."""
    await store.link.create_topic("t", Kind.KV, config)
    for pairs in ([("a", "1"), ("b", "1")], [("c", "1")], [("a", "2"), ("b", None)], [("d", "1")]):
        await append(store.link, "t", puts(*pairs))
        await store.put()


async def fold_at(store: PlacedStore, seq: int, *, max_records: int = 2) -> dict[bytes, bytes | None]:
    """Read the fold at a point from its splits alone."""
    plan, splits = await planned(store.link, "t", PlanRequest(as_of_seq=seq, max_records=max_records))
    assert (plan.end_seq, plan.head_seq) == (seq + 1, store.topic("t").head_seq)
    return await folded(store, splits)


async def folded(store: PlacedStore, splits: list[Split]) -> dict[bytes, bytes | None]:
    """Read splits together: for each key the value of the row with the highest seq."""
    newest: dict[bytes, Record] = {}
    for split in reversed(splits):  # in any order
        for item in (await read_split(store.link, "t", split, epoch=1)).items:
            assert isinstance(item, Record)
            if item.seq > newest.get(item.key or b"", Record()).seq:
                newest[item.key or b""] = item
    return {key: row.data for key, row in sorted(newest.items()) if row.op == Op.PUT}


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_a_fold_without_a_base_is_read_from_the_log_left_on_disk(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await filled(store)
        await store.link.get_topic("t")
        assert store.topic("t").floors.trim == 4
        assert await fold_at(store, 0) == {}
        assert await fold_at(store, 3) == {b"a": b"1", b"b": b"1", b"c": b"1"}
        assert await fold_at(store, 6) == {b"a": b"2", b"c": b"1", b"d": b"1"}


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_a_fold_is_read_from_its_base_and_the_log_after_it(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await filled(store)
        await store.make_base("t")
        await append(store.link, "t", puts(("a", None), ("e", "1")))
        await store.put()
        plan, splits = await planned(store.link, "t", PlanRequest(as_of_seq=7, max_records=2))
        assert plan.first_seq == 7
        kinds = [(split.kind, split.first, split.last, split.base_seq) for split in splits]
        assert kinds == [(SplitKind.BASE, 0, 2, 6), (SplitKind.HISTORY, 7, 7, 6)]
        assert await folded(store, splits) == {b"c": b"1", b"d": b"1"}
        assert await fold_at(store, 8) == {b"c": b"1", b"d": b"1", b"e": b"1"}
        with pytest.raises(HistoryGone) as gone:
            await fold_at(store, 5)
        assert gone.value.earliest_seq == 6


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_a_point_below_the_base_is_readable_while_the_log_is_complete(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await filled(store, TopicConfig())
        await store.make_base("t")
        assert await fold_at(store, 4) == {b"a": b"2", b"b": b"1", b"c": b"1"}
        _, splits = await planned(store.link, "t", PlanRequest(as_of_seq=4))
        await store.link.delete_records("t", before_seq=3)
        with pytest.raises(HistoryGone):
            await folded(store, splits)


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_erased_keys_are_in_no_split(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await filled(store)
        await store.make_base("t")
        await append(store.link, "t", puts(("c", "2")))
        await store.link.delete_records("t", match=Match(MatchField.KEY, MatchKind.EQ, b"c"))
        await append(store.link, "t", puts(("e", "1")))
        await store.put()
        for seq, expected in ((6, {}), (7, {}), (8, {b"e": b"1"})):
            assert await fold_at(store, seq) == {b"a": b"2", b"d": b"1"} | expected


async def test_a_base_made_again_at_the_same_seq_is_another_one() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store)
        await store.make_base("t")
        _, splits = await planned(store.link, "t", PlanRequest(as_of_seq=6))
        assert await folded(store, splits) == {b"a": b"2", b"c": b"1", b"d": b"1"}
        await store.link.delete_records("t", match=Match(MatchField.KEY, MatchKind.EQ, b"a"))
        await store.make_base("t")
        base = store.topic("t").base
        assert base is not None
        assert (base.seq, base.rows) == (6, 2)
        with pytest.raises(HistoryGone):
            await folded(store, splits)
        assert await fold_at(store, 6) == {b"c": b"1", b"d": b"1"}


async def test_history_that_a_later_base_replaced_is_gone() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store)
        _, splits = await planned(store.link, "t", PlanRequest(as_of_seq=6, max_records=1))
        plan = await store.link.plan_splits("t", PlanRequest(as_of_seq=6, max_records=1, limit=1))
        await store.make_base("t")
        with pytest.raises(HistoryGone) as gone:
            await folded(store, splits[-1:])
        assert gone.value.earliest_seq == 6
        with pytest.raises(HistoryGone):
            await store.link.plan_splits("t", PlanRequest(as_of_seq=6, max_records=1, limit=1, mark=plan.mark))


async def test_pages_continue_from_the_base_into_the_history() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store)
        await store.make_base("t")
        for number in range(4):
            await append(store.link, "t", puts(("a", str(number))))
        _, splits = await planned(store.link, "t", PlanRequest(as_of_seq=9, max_records=1, limit=1))
        kinds = [(split.kind, split.first, split.last) for split in splits]
        assert kinds == [(SplitKind.BASE, 0, 2), *[(SplitKind.HISTORY, seq, seq) for seq in (7, 8, 9)]]
        assert await folded(store, splits) == {b"a": b"2", b"c": b"1", b"d": b"1"}


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_a_deleted_prefix_leaves_points_at_which_every_key_is_readable(place: LogPlace) -> None:
    """c and a's "2" are still in the fold, a's "1" and b's "1" are not: they were deleted with the prefix."""
    async with placed_store(place) as store:
        await filled(store, TopicConfig())
        await store.link.delete_records("t", before_seq=5)
        await store.put()
        for seq in (1, 2, 3):
            with pytest.raises(HistoryGone):
                await fold_at(store, seq)
        assert await fold_at(store, 6) == {b"a": b"2", b"c": b"1", b"d": b"1"}
        with pytest.raises(HistoryGone):  # b was live
            await fold_at(store, 4)
        assert await fold_at(store, 5) == {b"a": b"2", b"c": b"1"}


async def test_row_numbers_above_the_bases_are_refused() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store)
        await store.make_base("t")
        _, (split, *_) = await planned(store.link, "t", PlanRequest(as_of_seq=6))
        with pytest.raises(InvalidArgument):
            await read_split(store.link, "t", split._replace(last=3), epoch=1)
        result = await read_split(store.link, "t", split._replace(first=1, last=1), epoch=1)
        assert [item.seq for item in result.items] == [3]


async def test_invalid_points_are_refused() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store)
        with pytest.raises(CursorAhead):
            await fold_at(store, 7)
        with pytest.raises(CursorAhead):
            await read_split(store.link, "t", Split(SplitKind.HISTORY, 1, 6, as_of_seq=7), epoch=1)
        store.topic("t").fold_lost = True
        with pytest.raises(FoldLost):
            await fold_at(store, 6)
        with pytest.raises(FoldLost):
            await read_split(store.link, "t", Split(SplitKind.HISTORY, 1, 6, as_of_seq=6), epoch=1)
