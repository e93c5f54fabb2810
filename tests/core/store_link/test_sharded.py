"""Several shards as one store: routing of topics and sources, complete lists or errors, an unreachable shard."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import SourceExists, SourceNotFound, StoreUnreachable, TopicNotFound
from eddyline.core.model.sharding import shard_of
from eddyline.core.model.source import SourceChange, SourceDefinition, SourceReport
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.store_link.protocol import FollowItem, FollowLevel, FollowStarted
from eddyline.core.store_link.sharded import ShardedLink
from tests.support.sim.cut_link import CutLink
from tests.support.store.shards import names_on
from tests.support.store.simulated import puts, rows, sim_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from eddyline.core.store_link.protocol import FollowEvent

COUNT = 3
LAST = COUNT - 1
TOPICS = [names_on(shard, COUNT, 2) for shard in range(COUNT)]


class Shards:
    """A link over stores that can be disconnected one by one."""

    def __init__(self, cuts: Sequence[CutLink]) -> None:
        self.cuts = cuts
        self.link = ShardedLink(cuts)

    def other(self) -> ShardedLink:
        """Return another role's link to the same stores."""
        return ShardedLink(self.cuts)

    async def source(self, name: str, topic: str, *, bucket: str = "bucket") -> SourceDefinition:
        """Create a source with a topic of its own."""
        definition = SourceDefinition(name, topic, bucket)
        await self.link.create_topic(topic, Kind.KV, TopicConfig())
        await self.link.put_source(definition)
        return definition


@pytest.fixture
async def shards() -> AsyncIterator[Shards]:
    async with opened() as made:
        yield made


@asynccontextmanager
async def opened() -> AsyncIterator[Shards]:
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(sim_store(shard_count=COUNT, shard_index=str(shard)))
            for shard in range(COUNT)
        ]
        yield Shards([CutLink(store) for store in stores])


async def test_a_topic_lives_only_on_the_shard_of_its_name(shards: Shards) -> None:
    for shard, (name, _) in enumerate(TOPICS):
        made = await shards.link.create_topic(name, Kind.LOG, TopicConfig())
        assert made.epoch >> 48 == shard == shard_of(name, COUNT)
        await shards.link.append(name, rows(name))
        assert (await shards.link.get_topic(name)).head_seq == 1
        for index, cut in enumerate(shards.cuts):
            if index != shard:
                with pytest.raises(TopicNotFound):
                    await cut.get_topic(name)
    await shards.link.delete_topic(TOPICS[1][0])
    with pytest.raises(TopicNotFound):
        await shards.cuts[1].get_topic(TOPICS[1][0])


async def test_sources_live_with_their_topics_and_are_listed_in_order(shards: Shards) -> None:
    names = ["c", "a", "b"]
    for name, (topic, _) in zip(names, TOPICS, strict=True):
        await shards.source(name, topic)
    for shard, cut in enumerate(shards.cuts):
        assert [info.definition.name for info in await cut.list_sources()] == [names[shard]]
    assert [info.definition.name for info in await shards.other().list_sources()] == ["a", "b", "c"]


async def test_an_unknown_source_is_located_and_leased_on_its_shard(shards: Shards) -> None:
    await shards.source("s", TOPICS[LAST][0])
    other = shards.other()
    lease = await other.acquire_lease("s", holder="h", lease_ms=0)
    applied = await other.apply_batch("s", fence=lease.fence, previous=b"", new=b"1", batch=puts(("k", "v")))
    assert applied.epoch >> 48 == LAST
    assert (await shards.other().update_source("s", SourceChange(on_expired="STOP"))).definition.on_expired == "STOP"
    assert (await shards.other().control_source("s", paused=True)).control.paused
    assert (await other.renew_lease("s", fence=lease.fence, report=SourceReport("LIVE"))).control.paused
    await shards.other().release_lease("s", fence=lease.fence)


async def test_a_source_name_is_unique_in_the_cluster(shards: Shards) -> None:
    await shards.source("s", TOPICS[0][0])
    await shards.link.create_topic(TOPICS[1][0], Kind.KV, TopicConfig())
    for link in (shards.link, shards.other()):
        with pytest.raises(SourceExists) as exists:
            await link.put_source(SourceDefinition("s", TOPICS[1][0], "bucket"))
        assert exists.value.metadata["topic"] == TOPICS[0][0]
        assert exists.value.metadata["askedTopic"] == TOPICS[1][0]
    assert len(await shards.link.list_sources()) == 1


@pytest.mark.parametrize("steps", range(12))
async def test_two_sources_of_one_name_put_at_once_never_both_stay(shards: Shards, steps: int) -> None:
    for topic in (TOPICS[0][0], TOPICS[1][0]):
        await shards.link.create_topic(topic, Kind.KV, TopicConfig())

    async def put(link: ShardedLink, topic: str, wait: int) -> bool:
        for _ in range(wait):
            await asyncio.sleep(0)
        try:
            await link.put_source(SourceDefinition("s", topic, "bucket"))
        except SourceExists:
            return False
        return True

    async with asyncio.TaskGroup() as tasks:
        one = tasks.create_task(put(shards.link, TOPICS[0][0], 0))
        two = tasks.create_task(put(shards.other(), TOPICS[1][0], steps))
    left = [info.definition.topic for info in await shards.other().list_sources()]
    assert left == [topic for topic, made in ((TOPICS[0][0], one), (TOPICS[1][0], two)) if made.result()]
    assert len(left) <= 1


async def test_a_source_recreated_on_another_shard_is_located_but_not_by_an_old_fence(shards: Shards) -> None:
    await shards.source("s", TOPICS[0][0])
    other = shards.other()
    fence = (await other.acquire_lease("s", holder="h", lease_ms=0)).fence
    third = shards.other()
    assert (await third.get_source("s")).definition.topic == TOPICS[0][0]
    await shards.link.delete_source("s")
    await shards.source("s", TOPICS[1][0])
    await shards.link.acquire_lease("s", holder="other", lease_ms=0)
    with pytest.raises(SourceNotFound):
        await other.apply_batch("s", fence=fence, previous=b"", new=b"1", batch=puts(("k", "v")))
    assert (await third.get_source("s")).definition.topic == TOPICS[1][0]


async def test_an_unreachable_shard_does_not_affect_the_others(shards: Shards) -> None:
    for name, shard in (("here", 0), ("away", LAST)):
        await shards.source(name, TOPICS[shard][0])
    shards.cuts[LAST].cut()
    lease = await shards.other().acquire_lease("here", holder="h", lease_ms=0)
    await shards.link.apply_batch("here", fence=lease.fence, previous=b"", new=b"1", batch=puts(("k", "v")))
    await shards.link.put_source(SourceDefinition("here", TOPICS[0][0], "bucket"))
    for call in (
        shards.link.get_topic(TOPICS[LAST][0]),
        shards.link.get_source("away"),
        shards.other().get_source("away"),
        shards.other().get_source("none"),
        shards.link.list_sources(),
        shards.link.put_source(SourceDefinition("none", TOPICS[0][1], "bucket")),
    ):
        with pytest.raises(StoreUnreachable):
            await call


async def taken(events: AsyncIterator[FollowEvent], count: int) -> list[FollowEvent]:
    return [await anext(events) for _ in range(count)]


async def test_a_follow_has_the_topics_of_all_shards_and_ends_with_the_first_that_breaks(shards: Shards) -> None:
    topics = [names[0] for names in TOPICS]
    for topic in topics:
        await shards.link.create_topic(topic, Kind.LOG, TopicConfig())
        await shards.link.append(topic, rows("x" * 100))
    async with shards.link.follow() as follow:
        await follow.grant(1 << 20)
        for follow_id, topic in enumerate(topics):
            await follow.add(follow_id, topic, after_seq=0)
        events = aiter(follow)
        received = await taken(events, 3 * COUNT)
        for follow_id in range(COUNT):
            own = [event for event in received if event.follow_id == follow_id]
            assert [type(event) for event in own] == [FollowStarted, FollowItem, FollowLevel]
        await follow.remove(0)
        await follow.add(1, topics[LAST], after_seq=0)  # an id moves to another shard
        started, item, level = await taken(events, 3)
        assert isinstance(started, FollowStarted)
        assert (started.topic.name, item.follow_id, level.follow_id) == (topics[LAST], 1, 1)
        await shards.link.append(topics[1], rows("nobody follows it any more"))
        await shards.link.append(topics[LAST], rows("y"))
        assert sorted(event.follow_id for event in await taken(events, 2)) == [1, 2]
        shards.cuts[0].cut()
        with pytest.raises(StoreUnreachable):
            await anext(events)


async def test_credit_covers_all_shards_and_returns_to_the_sender(shards: Shards) -> None:
    topic, quiet = TOPICS[0][0], TOPICS[1][0]
    for name in (topic, quiet):
        await shards.link.create_topic(name, Kind.LOG, TopicConfig())
    async with shards.link.follow() as follow:
        await follow.grant(64 << 20)  # all that may be outstanding: a shard that sent nothing is owed nothing
        await follow.add(1, topic, after_seq=0)
        await follow.add(2, quiet, after_seq=0)
        events = aiter(follow)
        await taken(events, 4)
        for number in range(5):
            await shards.link.append(topic, rows("x" * 1_000))
            item = await anext(events)
            assert isinstance(item, FollowItem)
            assert isinstance(item.item, Batch)
            assert item.next_after_seq == number + 1
            await follow.grant(1_032)
