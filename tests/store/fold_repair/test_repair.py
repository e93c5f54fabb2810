"""Folds that are missing, damaged or behind at a store's start: the store serves the state of base and log, or refuses
reads."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import DataCorrupt, FoldLost
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.store.fold.fold import FoldWrite
from eddyline.store.log.append import WriterPosition
from tests.support.models.history import read_all
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import Crashed
from tests.support.store.fold_lives import LAYOUT, Lives, entries, entries_of, fill, first_segment, flip, nothing, seal
from tests.support.store.simulated import append, kv_topic, log_topic, puts, rows, sim_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from eddyline.store.shard.shard import Shard


@pytest.mark.parametrize("kill", [False, True])
async def test_missing_fold_is_rebuilt_from_the_log(kill: bool) -> None:
    lives = Lives()
    await lives.run(fill)
    expected = await entries_of(lives)

    async def more(link: Shard) -> None:
        await append(link, "kv", puts(("more", "1"), ("k0", None)), writer=WriterPosition("w", 1, b"", b"p"))

    await lives.run(more, kill=kill)
    expected = await entries_of(lives)
    assert len(expected) > 6
    lives.fold = SimFold(0)
    assert await entries_of(lives) == expected
    assert lives.fold.writers(1)["w"].position == b"p"
    assert await entries_of(lives) == expected


async def test_fold_that_lost_synced_writes_is_not_used() -> None:
    lives = Lives()
    old: list[SimFold] = []

    async def fill_and_copy(link: Shard) -> None:
        await fill(link)
        old.append(deepcopy(lives.fold))
        await append(link, "kv", puts(("late", "1")))
        result = await link.delete_records("kv", match=Match(MatchField.KEY, MatchKind.EQ, b"k1"))
        assert result.deleted_count

    await lives.run(fill_and_copy)
    expected = await entries_of(lives)
    assert b"k1" not in {row.key for row in expected}
    # One frame short, but at the catalog's head: only its checkpoint number shows that the erasure is lost.
    stale = old[0]
    stale.apply([FoldWrite(1, lives.fold.applied(1), [], [])])
    lives.fold, lives.opened = stale.kill(), []
    assert await entries_of(lives) == expected
    assert len(lives.opened) == 2


async def test_fold_that_cannot_be_opened_is_quarantined_and_rebuilt() -> None:
    lives = Lives()
    await lives.run(fill)
    expected = await entries_of(lives)
    fold_dir = LAYOUT.fold
    lives.fs.mkdir(fold_dir)
    lives.fs.open(fold_dir / "CURRENT", create=True).close()
    lives.fs.fsync_dir(fold_dir.parent)
    tries: list[SimFold] = []

    def damaged_once() -> SimFold:
        tries.append(SimFold(0))
        if len(tries) == 1:
            raise DataCorrupt("fold: broken", file="fold", offset=0)
        return tries[-1]

    async with sim_store(lives.fs, clock=lives.clock, open_fold=damaged_once) as link:
        assert await entries(link) == expected
    (day,) = lives.fs.listdir(LAYOUT.orphans)
    assert lives.fs.listdir(LAYOUT.orphans / day / "fold") == ["CURRENT"]
    assert not lives.fs.exists(fold_dir)


async def test_fold_of_another_store_makes_the_start_fail_and_stays() -> None:
    lives, other = Lives(), Lives()
    await lives.run(fill)
    other.clock.advance(1)
    await other.run(fill)
    lives.fold, lives.opened = other.fold, []
    with pytest.raises(DataCorrupt, match="belongs to store"):
        await lives.run(nothing)
    assert len(lives.opened) == 1
    assert not lives.fs.exists(LAYOUT.orphans)


async def test_deleted_keys_and_trimmed_history_are_rebuilt_unchanged() -> None:
    lives = Lives()

    async def work(link: Shard) -> None:
        await fill(link)
        await link.delete_records("kv", match=Match(MatchField.KEY, MatchKind.EQ, b"k2"))
        await link.delete_records("kv", before_seq=15)
        await link.delete_records("kv", match=Match(MatchField.KEY, MatchKind.PREFIX, b"g"))
        await append(link, "kv", puts(("k2", "again")))
        await seal(link)

    await lives.run(work)
    expected = await entries_of(lives)
    assert {row.key for row in expected} == {b"k%d" % i for i in range(7)}
    lives.fold = SimFold(0)
    assert await entries_of(lives) == expected


async def test_gaps_of_lost_seqs_are_not_missing_records() -> None:
    lives = Lives()
    await lives.run(fill, kill=True)
    lives.fs = lives.fs.reboot("power")
    lives.fold = lives.fold.power()
    await lives.run(fill_more := _appender("after"))
    expected = await entries_of(lives)
    lives.fold = SimFold(0)
    assert await entries_of(lives) == expected
    await lives.run(fill_more)


def _appender(key: str) -> Callable[[Shard], Awaitable[None]]:
    async def work(link: Shard) -> None:
        await append(link, "kv", puts((key, "1")))

    return work


class Flaky(SimFold):
    """A fold whose process is killed after some writes."""

    def __init__(self, writes: int) -> None:
        super().__init__(0)
        self.writes = writes

    def apply(self, writes: Sequence[FoldWrite]) -> None:
        self.writes -= 1
        if self.writes < 0:
            raise Killed
        super().apply(writes)


class Killed(Exception):
    """The process died."""


async def test_interrupted_repair_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eddyline.store.fold_repair.rebuild.WRITE_ENTRIES", 2)
    lives = Lives()
    await lives.run(partial(fill, count=60))
    expected = await entries_of(lives)
    fold: SimFold = Flaky(5)
    applied = [0]
    lives_taken = 0
    while True:
        lives_taken += 1
        lives.fold = fold
        try:
            await lives.run(nothing)
        except Killed:
            applied.append(fold.applied(1))
            successor = Flaky(3)
            successor._durable, successor._state, successor._unsynced = fold._durable, fold._state, fold._unsynced
            fold = successor
        else:
            break
    assert lives_taken > 3
    assert applied == sorted(applied)
    assert len(set(applied)) > 3
    assert await entries_of(lives) == expected
    assert len(lives.opened) == lives_taken + 3, "each start went on with the same fold"


async def test_fold_without_its_log_is_lost_and_its_reads_are_refused() -> None:
    lives = Lives()
    await lives.run(fill)
    expected = await entries_of(lives)
    segment = first_segment(lives)
    flip(lives, segment)
    lives.fold = SimFold(0)

    async def refused(link: Shard) -> None:
        for read in (
            lambda: link.batch_get_entries("kv", [b"k0"]),
            lambda: entries(link),
            lambda: append(link, "kv", puts(("k0", "1")), expected_versions=((b"k0", b""),)),
            lambda: link.delete_records("kv", match=Match(MatchField.KEY, MatchKind.EQ, b"k0")),
            lambda: anext(link.verify_fold("kv")),
        ):
            with pytest.raises(FoldLost):
                await read()

    async def served(link: Shard) -> None:
        await refused(link)
        head_seq = (await link.get_topic("kv")).head_seq
        assert (await append(link, "kv", puts(("k0", "late")))).first_seq == head_seq + 1
        result = await link.read_records("kv", after_seq=head_seq)
        assert [row.data for row in result.items[0].to_rows()] == [b"late"]  # type: ignore[union-attr]

    await lives.run(served)
    await lives.run(refused)
    # The file is restored: the next start reads everything.
    flip(lives, segment)
    result = await entries_of(lives)
    assert [row for row in result if row.key != b"k0"] == [row for row in expected if row.key != b"k0"]
    assert {row.key: row.data for row in result}[b"k0"] == b"late"
    lives.opened = []
    await lives.run(nothing)
    assert len(lives.opened) == 1


async def test_start_killed_between_loss_and_catalog_serves_no_part_of_a_fold() -> None:
    lives = Lives()
    await lives.run(fill)
    flip(lives, first_segment(lives))
    lives.fold = SimFold(0)
    pristine = lives.fs.reboot("kill")
    lives.fs, crash_at = pristine, 0
    while True:
        crash_at += 7
        crashing = pristine.reboot("kill", crash_at=crash_at)
        fold = SimFold(0)
        try:
            async with sim_store(crashing, fold, lives.clock) as link:
                with pytest.raises(FoldLost):
                    await entries(link)
        except* Crashed:
            pass
        else:
            break
        async with sim_store(crashing.reboot("kill"), fold.kill(), lives.clock) as link:
            with pytest.raises(FoldLost):
                await entries(link)
    assert crash_at > 20


async def test_topic_with_a_lost_fold_can_be_deleted_and_recreated() -> None:
    lives = Lives()
    await lives.run(fill)
    flip(lives, first_segment(lives))
    lives.fold = SimFold(0)

    async def anew(link: Shard) -> None:
        await link.delete_topic("kv")
        await kv_topic(link)
        await append(link, "kv", puts(("k", "1")))
        assert [row.key for row in await entries(link)] == [b"k"]

    await lives.run(anew)


async def test_fold_is_rebuilt_from_a_base() -> None:
    lives = Lives()

    async def with_base(link: Shard) -> None:
        await fill(link)
        await seal(link)
        topic = link._table.get("kv")
        await link._parts.maintenance._planner._bases.make(topic)
        assert topic.base is not None
        await link.delete_records("kv", match=Match(MatchField.KEY, MatchKind.EQ, b"k3"))
        await append(link, "kv", puts(("k4", "new"), ("k5", None)))

    await lives.run(with_base)
    expected = await entries_of(lives)
    assert {row.key for row in expected}.isdisjoint({b"k3", b"k5"})
    # The log before the base is no longer needed.
    flip(lives, first_segment(lives))
    lives.fold = SimFold(0)
    assert await entries_of(lives) == expected
    assert lives.fold.base_seq(1) > 0

    # An interrupted load is repeated, whatever its remains.
    half = SimFold(0)
    half.set_store_id(lives.fold.store_id())
    half.set_checkpoint(lives.fold.checkpoint())
    half.apply([FoldWrite(1, 0, [(b"left over", b"junk")], [])])
    lives.fold = half
    assert await entries_of(lives) == expected


async def test_topics_without_a_fold_are_not_repaired() -> None:
    lives = Lives()

    async def fill_log(link: Shard) -> None:
        await log_topic(link)
        await append(link, "log", rows("a", "b"))
        await link.create_topic("empty", Kind.KV, TopicConfig())

    await lives.run(fill_log)
    lives.fold = SimFold(0)

    async def look(link: Shard) -> None:
        assert len((await read_all(link, "log"))[0]) == 2
        assert await entries(link, "empty") == []

    await lives.run(look)


async def test_large_records_are_not_joined_into_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = Lives()

    async def large(link: Shard) -> None:
        await kv_topic(link)
        for number in range(20):
            await append(link, "kv", puts((f"k{number}", "x" * 300_000)))

    await lives.run(large)
    expected = await entries_of(lives)
    sizes: list[int] = []

    def apply(fold: SimFold, writes: Sequence[FoldWrite]) -> None:
        sizes.append(sum(len(value or b"") for write in writes for _, value in write.entries))
        original(fold, writes)

    original = SimFold.apply
    monkeypatch.setattr(SimFold, "apply", apply)
    lives.fold = SimFold(0)
    assert await entries_of(lives) == expected
    assert 300_000 < max(sizes) < 1_500_000
