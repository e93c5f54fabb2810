"""Following topics in the store: order, credit, catching up, deletion."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import InvalidArgument, TopicNotFound
from eddyline.core.model.topic import ConfigChange, Durability
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason
from eddyline.core.store_link.protocol import FollowChanged, FollowEnded, FollowItem, FollowLevel, FollowStarted
from eddyline.store.read.follow import ANSWERS_MAX, TURN_BYTES_MAX
from tests.support.hang import HANG_S
from tests.support.manual_clock import settle
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import append, log_topic, rows, sim_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.store_link.protocol import FollowEvent

CREDIT = 1 << 20


async def take(events: AsyncIterator[FollowEvent], count: int) -> list[FollowEvent]:
    """Return the next `count` events."""
    async with asyncio.timeout(HANG_S):
        return [await anext(events) for _ in range(count)]


async def test_follower_catches_up_and_continues_live() -> None:
    async with sim_store() as link, link.follow() as follow:
        await log_topic(link)
        await append(link, "log", rows("a", "b"))
        await follow.grant(CREDIT)
        await follow.add(7, "log", after_seq=1)
        events = aiter(follow)
        started, item, level = await take(events, 3)
        assert isinstance(started, FollowStarted)
        assert started.after_seq == 1
        assert isinstance(item, FollowItem)
        assert isinstance(item.item, Batch)
        assert [row.data for row in item.item.to_rows()] == [b"b"]
        assert item.next_after_seq == 2
        assert level == FollowLevel(7, 2)
        await append(link, "log", rows("c"))
        (live,) = await take(events, 1)
        assert isinstance(live, FollowItem)
        assert live.next_after_seq == 3


async def test_nothing_is_sent_without_credit_and_one_item_may_overdraw_it() -> None:
    async with sim_store() as link, link.follow() as follow, asyncio.TaskGroup() as tasks:
        await log_topic(link)
        await append(link, "log", rows("a" * 1000))
        await follow.add(1, "log", after_seq=0)
        events = aiter(follow)
        await take(events, 1)
        waiting = tasks.create_task(take(events, 1))
        await settle()
        assert not waiting.done()
        await follow.grant(1)
        assert isinstance((await waiting)[0], FollowItem)
        await take(events, 1)
        await append(link, "log", rows("b"))
        waiting = tasks.create_task(take(events, 1))
        await settle()
        assert not waiting.done()
        await follow.grant(CREDIT)
        assert isinstance((await waiting)[0], FollowItem)


async def test_more_than_64_mib_of_credit_is_refused() -> None:
    async with sim_store() as link, link.follow() as follow:
        await follow.grant(64 << 20)
        with pytest.raises(InvalidArgument):
            await follow.grant(1)


async def test_deleted_topic_ends_alone_after_its_last_records() -> None:
    async with sim_store() as link, link.follow() as follow:
        await log_topic(link, "gone")
        await log_topic(link, "stays")
        await follow.grant(CREDIT)
        await follow.add(1, "gone", after_seq=0)
        await follow.add(2, "stays", after_seq=0)
        events = aiter(follow)
        await take(events, 4)
        await append(link, "gone", rows("a"))
        await link.delete_topic("gone")
        item, ended = await take(events, 2)
        assert isinstance(item, FollowItem)
        assert isinstance(ended, FollowEnded)
        assert (ended.follow_id, ended.reason) == (1, "TOPIC_NOT_FOUND")
        await append(link, "stays", rows("b"))
        (live,) = await take(events, 1)
        assert isinstance(live, FollowItem)
        assert live.follow_id == 2


async def test_unknown_topic_and_cursor_ahead_end_alone() -> None:
    async with sim_store() as link, link.follow() as follow:
        epoch = await log_topic(link)
        await follow.add(1, "missing", after_seq=0)
        await follow.add(2, "log", epoch=epoch, after_seq=5)
        ended = await take(aiter(follow), 2)
        assert [event.reason for event in ended if isinstance(event, FollowEnded)] == [
            "TOPIC_NOT_FOUND",
            "CURSOR_AHEAD",
        ]


async def test_cursor_of_another_epoch_gets_a_gap_then_the_whole_log() -> None:
    async with sim_store() as link, link.follow() as follow:
        old = await log_topic(link)
        await link.delete_topic("log")
        new = await log_topic(link)
        await append(link, "log", rows("a"))
        await follow.grant(CREDIT)
        await follow.add(1, "log", epoch=old, after_seq=9)
        _, gap, item = await take(aiter(follow), 3)
        assert isinstance(gap, FollowItem)
        assert gap.item == Gap(0, 0, GapReason.RECREATED, old_epoch=old, new_epoch=new)
        assert isinstance(item, FollowItem)
        assert item.next_after_seq == 1


async def test_topic_removed_during_a_read_sends_no_more_events() -> None:
    async with sim_store(cache_bytes=0) as link, link.follow() as follow, asyncio.TaskGroup() as tasks:
        await log_topic(link)
        await append(link, "log", rows("a"))
        await follow.grant(CREDIT)
        await follow.add(1, "log", after_seq=0)
        events = aiter(follow)
        await take(events, 1)
        waiting = tasks.create_task(take(events, 1))
        await settle(2)
        await follow.remove(1)
        await settle()
        assert not waiting.done()
        await follow.add(2, "log", after_seq=1)
        assert (await waiting)[0].follow_id == 2


async def test_caught_up_and_end_need_no_credit_if_nothing_is_unread() -> None:
    async with sim_store() as link, link.follow() as follow:
        await log_topic(link)
        await append(link, "log", rows("a"))
        await follow.add(1, "log", after_seq=1)
        events = aiter(follow)
        started, level = await take(events, 2)
        assert isinstance(started, FollowStarted)
        assert level == FollowLevel(1, 1)
        await link.delete_topic("log")
        (ended,) = await take(events, 1)
        assert isinstance(ended, FollowEnded)
        assert ended.reason == "TOPIC_NOT_FOUND"


async def test_end_of_a_deleted_topic_waits_for_credit_after_its_records() -> None:
    async with sim_store() as link, link.follow() as follow, asyncio.TaskGroup() as tasks:
        await log_topic(link)
        for value in ("a", "b", "c"):
            await append(link, "log", rows(value * TURN_BYTES_MAX))
        await follow.add(1, "log", after_seq=0)
        events = aiter(follow)
        await take(events, 1)
        await link.delete_topic("log")
        waiting = tasks.create_task(take(events, 5))
        await settle()
        await follow.grant(2 * TURN_BYTES_MAX)
        await settle()
        assert not waiting.done()
        await follow.grant(TURN_BYTES_MAX)
        assert [type(event) for event in await waiting] == [FollowItem] * 3 + [FollowLevel, FollowEnded]


async def test_caught_up_follows_the_last_record_though_it_took_all_credit() -> None:
    async with sim_store() as link, link.follow() as follow:
        await log_topic(link)
        await append(link, "log", rows("a" * 1000))
        await follow.grant(1)
        await follow.add(1, "log", after_seq=0)
        assert [type(event) for event in await take(aiter(follow), 3)] == [FollowStarted, FollowItem, FollowLevel]


async def test_add_waits_while_too_many_answers_are_pending() -> None:
    async with sim_store() as link, link.follow() as follow, asyncio.TaskGroup() as tasks:
        await log_topic(link)
        for number in range(ANSWERS_MAX):
            await follow.add(number, "log" if number % 2 else "missing", after_seq=0)
        adding = tasks.create_task(follow.add(ANSWERS_MAX, "log", after_seq=0))
        await settle()
        assert not adding.done()
        await take(aiter(follow), 1)
        await adding
        adding = tasks.create_task(follow.add(ANSWERS_MAX + 1, "log", after_seq=0))
        await settle()
        assert not adding.done()
        follow.close()
        await adding


async def test_topics_added_and_removed_again_leave_nothing_behind() -> None:
    async with sim_store() as link, link.follow() as follow:
        await log_topic(link)
        await append(link, "log", rows("a"))
        topic = link._table.get("log")
        for number in range(1_000):
            await follow.add(number % 3, "log", after_seq=number % 2)
        assert len(follow._behind) + len(follow._unreported) == 3
        for number in range(3):
            await follow.remove(number)
        assert not follow._behind
        assert not follow._unreported
        assert not topic._listeners


async def test_many_follows_of_one_topic_are_closed_together() -> None:
    async with sim_store() as link:
        await log_topic(link)
        topic, unlistened = link._table.get("log"), 0

        class Counted(dict[object, None]):
            def __delitem__(self, key: object) -> None:
                nonlocal unlistened
                unlistened += 1
                super().__delitem__(key)

        topic._listeners = Counted()  # type: ignore[assignment]
        async with link.follow() as follow:
            for number in range(ANSWERS_MAX):
                await follow.add(number, "log")
        assert unlistened == 1
        assert not follow._followed


async def test_topic_deleted_with_its_unread_files_ends_as_deleted() -> None:
    async with sim_store(cache_bytes=0) as link, link.follow() as follow:
        await log_topic(link)
        await append(link, "log", rows("a", "b"))
        topic = link._table.get("log")
        await link._parts.maintenance._sealer.seal(topic, 2)
        await follow.add(7, "log", after_seq=0)
        await link.delete_topic("log")
        await link._parts.garbage.sweep()
        await follow.grant(CREDIT)
        started, ended = await take(aiter(follow), 2)
        assert isinstance(started, FollowStarted)
        assert isinstance(ended, FollowEnded)
        assert ended.reason == TopicNotFound.reason


async def test_follower_gets_a_changed_configuration_once() -> None:
    async with sim_store() as link, link.follow() as follow:
        await log_topic(link)
        await follow.grant(CREDIT)
        await follow.add(7, "log")
        events = aiter(follow)
        await take(events, 2)
        await link.update_topic("log", ConfigChange(priority=3))
        await link.update_topic("log", ConfigChange(priority=5))
        (changed,) = await take(events, 1)
        assert isinstance(changed, FollowChanged)
        assert (changed.follow_id, changed.topic.config.priority) == (7, 5)
        await link.update_topic("log", ConfigChange(clear_priority=True))
        await append(link, "log", rows("a"))
        item, changed = await take(events, 2)
        assert isinstance(item, FollowItem)
        assert isinstance(changed, FollowChanged)
        assert changed.topic.config.priority is None


@pytest.mark.parametrize("durability", Durability)
async def test_follower_gets_the_change_of_a_delete_after_the_records_read_before(durability: Durability) -> None:
    async with sim_store() as link, link.follow() as follow:
        await log_topic(link, durability=durability)
        await follow.grant(CREDIT)
        await follow.add(7, "log")
        events = aiter(follow)
        started, _ = await take(events, 2)
        assert isinstance(started, FollowStarted)
        await append(link, "log", rows("a", "b"))
        await take(events, 1)
        assert (await link.delete_records("log", before_seq=2)).deleted_count == 1
        (changed,) = await take(events, 1)
        assert isinstance(changed, FollowChanged)
        assert changed.topic.delete_mark == (await link.get_topic("log")).delete_mark
        assert changed.topic.delete_mark != started.topic.delete_mark
        await append(link, "log", rows("c", "d"))
        await link.delete_records("log", before_seq=4)
        item, changed = await take(events, 2)
        assert isinstance(item, FollowItem)
        assert isinstance(item.item, Batch)
        assert [row.data for row in item.item.to_rows()] == [b"d"]
        assert isinstance(changed, FollowChanged)
        assert changed.topic.delete_mark == (await link.get_topic("log")).delete_mark


async def test_delete_mark_differs_from_those_of_earlier_starts() -> None:
    fs, seen = SimFs(), list[int]()
    for _ in range(4):
        async with sim_store(fs) as link:
            if not seen:
                await log_topic(link)
            seen.append((await link.get_topic("log")).delete_mark)
            for _ in range(3):
                await append(link, "log", rows("a"))
                head_seq = (await link.get_topic("log")).head_seq
                await link.delete_records("log", before_seq=head_seq + 1)
                seen.append((await link.get_topic("log")).delete_mark)
    assert len(set(seen)) == len(seen)


async def test_topic_deleted_with_its_unread_memory_ends_as_deleted_not_caught_up() -> None:
    async with sim_store() as link, link.follow() as follow:
        await log_topic(link, durability=Durability.EPHEMERAL)
        await append(link, "log", rows("a", "b"))
        await follow.add(1, "log", after_seq=0)
        events = aiter(follow)
        await take(events, 1)
        await link.delete_topic("log")
        await follow.grant(CREDIT)
        (ended,) = await take(events, 1)
        assert ended == FollowEnded(1, "TOPIC_NOT_FOUND", "topic log was deleted")
