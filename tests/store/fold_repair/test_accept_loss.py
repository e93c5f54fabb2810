"""Accepted losses of folds: the readable rest becomes the fold, and a base of it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.fold_check import FoldVerdict
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.store.compaction.reclaim import reclaim
from tests.support.sim.fold import SimFold
from tests.support.store.fold_lives import LAYOUT, Lives, entries, entries_of, fill, first_segment, flip, nothing, seal
from tests.support.store.simulated import append, kv_topic, puts

if TYPE_CHECKING:
    from eddyline.store.shard.shard import Shard


async def test_accepted_fold_has_the_remaining_entries_also_after_restarts() -> None:
    lives = Lives()
    await lives.run(fill)
    before = await entries_of(lives)
    segment = first_segment(lives)
    flip(lives, segment)
    lives.fold = SimFold(0)

    async def settle(link: Shard) -> None:
        assert (link.status().fold_count, link.status().lost_fold_count) == (1, 1)
        await append(link, "kv", puts(("late", "1")))
        settled = await link.settle_fold("kv")
        assert settled.settled
        assert (link.status().fold_count, link.status().lost_fold_count) == (1, 0)
        assert settled.base_seq == 0
        assert settled.log_first_seq > 1
        assert settled.state.fold_seq == (await link.get_topic("kv")).head_seq
        left = {row.key: row for row in await entries(link)}
        assert left.pop(b"late").data == b"1"
        assert set(left.values()) <= set(before)
        assert all(row.key in left for row in before if row.seq >= settled.log_first_seq)
        assert not (await link.settle_fold("kv")).settled
        topic = link._table.get("kv")
        assert topic.base is None
        lives.clock.advance(60)  # the write burst is over
        assert await link._parts.maintenance.round()
        assert topic.base is not None

    await lives.run(settle, kill=True)
    left = await entries_of(lives)
    assert b"late" in {row.key for row in left}
    # From now on the base suffices, and the damaged files are not needed.
    lives.fold = SimFold(0)
    assert await entries_of(lives) == left

    async def check(link: Shard) -> None:
        verdict = [step async for step in link.verify_fold("kv")][-1]
        assert isinstance(verdict, FoldVerdict)
        assert verdict.differing_count == 0

    await lives.run(check)


async def test_fold_accepted_with_a_damaged_base_has_all_of_the_remaining_log() -> None:
    lives = Lives()

    async def with_base(link: Shard) -> None:
        await kv_topic(link)
        await append(link, "kv", puts(("trimmed", "1"), ("erased", "1")))
        await append(link, "kv", puts(("kept", "1"), ("gone", "1"), ("erased", "2"), ("again", "1")))
        await append(link, "kv", puts(("again", "2"), ("gone", None)))
        await seal(link)
        await link._parts.maintenance._planner._bases.make(link._table.get("kv"))
        await link.delete_records("kv", match=Match(MatchField.KEY, MatchKind.EQ, b"erased"))
        await link.delete_records("kv", before_seq=3)
        await append(link, "kv", puts(("late", "1")))

    await lives.run(with_base)
    assert {row.key for row in await entries_of(lives)} == {b"trimmed", b"kept", b"again", b"late"}
    directory = LAYOUT.topic_dir(1)
    (base,) = [name for name in lives.fs.listdir(directory) if name.startswith("base")]
    flip(lives, directory / base)
    lives.fold = SimFold(0)

    async def settle(link: Shard) -> None:
        settled = await link.settle_fold("kv")
        assert (settled.settled, settled.base_seq, settled.log_first_seq) == (True, 0, 3)
        assert {row.key: row.data for row in await entries(link)} == {b"kept": b"1", b"again": b"2", b"late": b"1"}

    await lives.run(settle)


async def _in_a_base_alone(link: Shard) -> None:
    await kv_topic(link)
    await append(link, "kv", puts(("a", "1"), ("b", "1")))
    await seal(link)
    planner = link._parts.maintenance._planner
    await planner._bases.make(link._table.get("kv"))
    await link.delete_records("kv", before_seq=3)
    topic = link._table.get("kv")
    await reclaim(planner._swap, topic)
    assert not len(topic.segments)


@pytest.mark.parametrize("put_back", [False, True])
async def test_fold_lost_with_its_base_alone_soon_has_a_new_base(put_back: bool) -> None:
    lives = Lives()
    await lives.run(_in_a_base_alone)
    await lives.run(nothing)
    directory = LAYOUT.topic_dir(1)
    (base,) = lives.fs.listdir(directory)
    flip(lives, directory / base)
    lives.fold = SimFold(0)
    await lives.run(nothing)

    async def settle(link: Shard) -> None:
        assert (await link.settle_fold("kv")).settled is not put_back
        lives.clock.advance(60)
        assert await link._parts.maintenance.round()

    if put_back:
        flip(lives, directory / base)
    await lives.run(settle)
    assert lives.fs.listdir(directory) != [base]
