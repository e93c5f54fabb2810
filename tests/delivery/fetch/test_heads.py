"""Head requests: one for all concurrent callers, and each answer no older than its call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import StoreUnreachable, TopicNotFound
from eddyline.delivery.fetch.heads import HeadCache
from tests.support.manual_clock import settle
from tests.support.sim.cut_link import CutLink
from tests.support.store.simulated import append, log_topic, rows, sim_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.model.topic import TopicInfo
    from eddyline.store.shard.shard import Shard


class Asked(CutLink):
    """A store whose answers about topics wait while the test holds them back."""

    def __init__(self, link: Shard) -> None:
        super().__init__(link)
        self.door = asyncio.Event()
        self.questions = 0

    async def get_topic(self, name: str) -> TopicInfo:
        self.questions += 1
        info = await super().get_topic(name)
        await self.door.wait()
        return info


@pytest.fixture(name="store")
async def _store() -> AsyncIterator[Shard]:
    async with sim_store() as link:
        await log_topic(link)
        yield link


async def test_callers_during_a_request_share_the_next_one(store: Shard) -> None:
    link = Asked(store)
    heads = HeadCache(link)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(heads.request("log"))
        await settle()
        await append(store, "log", rows("acknowledged before the others ask"))
        others = [tasks.create_task(heads.request("log")) for _ in range(100)]
        await settle()
        assert link.questions == 1
        link.door.set()
    assert link.questions == 2
    assert [
        info.head_seq
        for info in (first.result(), *(other.result() for other in others))
        if not isinstance(info, TopicNotFound)
    ] == [0] + [1] * 100


async def test_a_cancelled_caller_does_not_affect_the_others(store: Shard) -> None:
    link = Asked(store)
    heads = HeadCache(link)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(heads.request("log"))
        await settle()
        leader = tasks.create_task(heads.request("log"))
        await settle()
        other = tasks.create_task(heads.request("log"))
        await settle()
        leader.cancel()
        await settle()
        first.cancel()
        await settle()
        link.door.set()
    assert not isinstance(other.result(), TopicNotFound)
    assert not heads._in_flight
    assert not heads._next


async def test_a_missing_topic_and_an_unreachable_store_are_reported_to_each_caller(store: Shard) -> None:
    link = Asked(store)
    link.door.set()
    heads = HeadCache(link)
    assert isinstance(await heads.request("none"), TopicNotFound)
    link.cut()

    async def refused() -> None:
        with pytest.raises(StoreUnreachable):
            await heads.request("log")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(refused())
    link.mend()
    assert not isinstance(await heads.request("log"), TopicNotFound)
