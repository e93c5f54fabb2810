"""A local fold of a real delivery, through any life of its topic: what is behind its place is the store's fold."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from eddyline.client.connect import Client
from eddyline.client.local_fold.follow import FoldStep, FollowOptions
from eddyline.client.local_fold.local_fold import LocalFold, open_fold, read_fold
from eddyline.client.transport.topology import Topology
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Op, Record
from tests.support.clients.clients import NoJitter, client_at
from tests.support.delivery.role import served_delivery
from tests.support.hang import HANG_S
from tests.support.store.simulated import append

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.delivery.role import ServedDelivery

TOPIC: Final = "t"
KEYS: Final = [b"k%d" % number for number in range(12)]
CONFIG: Final = TopicConfig(cap_records=15)
"""A follower that is away for two appends may find a gap."""


class Life:
    """A topic at random, and a fold of it that is followed now and then."""

    def __init__(self, served: ServedDelivery, client: Client, chance: Random) -> None:
        self.served = served
        self.store = served.store
        self.client = client
        self.chance = chance
        self.steps: set[FoldStep] = set()

    async def write(self) -> None:
        rows = [self._change() for _ in range(self.chance.randint(1, 10))]
        await append(self.store, TOPIC, Batch.from_rows(rows))

    async def make_anew(self) -> None:
        await self.store.delete_topic(TOPIC)
        await self.store.create_topic(TOPIC, Kind.KV, CONFIG)

    def _change(self) -> Record:
        key = self.chance.choice(KEYS)
        if self.chance.random() < 0.3:
            return Record(op=self.chance.choice((Op.DELETE, Op.PURGE)), key=key)
        return Record(op=Op.PUT, key=key, data=self.chance.randbytes(self.chance.randrange(20)))

    async def follow(self, fold: LocalFold) -> None:
        """Follow until it is where the topic is, writing meanwhile; then it is the store's fold."""
        options = FollowOptions(on_step=self.steps.add)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(fold.follow(self.client, options, random_source=NoJitter(1)))
            for _ in range(self.chance.randrange(4)):
                await self.write()
                for _ in range(self.chance.randrange(30)):
                    await asyncio.sleep(0)
            topic = await self.store.get_topic(TOPIC)
            place = (topic.epoch, topic.head_seq)
            await self.served.until(lambda: (fold.state().epoch, fold.state().seq) == place and fold.state().level)
            following.cancel()
        await self.check(fold)

    async def follow_a_moment(self, fold: LocalFold) -> None:
        async with asyncio.TaskGroup() as group:
            following = group.create_task(fold.follow(self.client, random_source=NoJitter(1)))
            for _ in range(self.chance.randrange(200)):
                await asyncio.sleep(0)
            following.cancel()

    async def check(self, fold: LocalFold) -> None:
        page = await self.store.batch_get_entries(TOPIC, KEYS)
        expected = {
            record.key: (record.seq, record.ts_ms, record.data) for record in page.entries if record is not None
        }
        assert {record.key: (record.seq, record.ts_ms, record.data) for record in fold.range()} == expected


@pytest.mark.parametrize("seed", range(6))
async def test_any_life_of_a_topic_is_followed(tmp_path: Path, seed: int) -> None:
    chance, path = Random(seed), tmp_path / "t.fold"
    # The ring is so small that delivery, too, has to ask the store for what is past.
    async with (
        served_delivery(seed=seed, topic_buffer_bytes=200) as served,
        client_at(Topology("local", (), (), (served.address,))) as client,
        asyncio.timeout(HANG_S),
    ):
        life = Life(served, client, chance)
        await served.store.create_topic(TOPIC, Kind.KV, CONFIG)
        for _ in range(15):
            async with open_fold(path, TOPIC) as fold:
                await chance.choice((life.follow, life.follow, life.follow_a_moment))(fold)
            for _ in range(chance.randrange(5)):
                await life.write()
            if chance.random() < 0.15:
                await life.make_anew()
        async with open_fold(path, TOPIC) as fold:
            await life.follow(fold)
            for _ in range(2 * CONFIG.cap_records):
                await life.write()
            await life.follow(fold)
        await life.check(read_fold(path))
    assert {FoldStep.SNAPSHOT, FoldStep.LEVEL, FoldStep.GAP} <= life.steps


async def test_a_delete_by_key_is_there_after_the_next_read(tmp_path: Path) -> None:
    async with (
        served_delivery() as served,
        client_at(Topology("local", (), (), (served.address,))) as client,
        asyncio.timeout(HANG_S),
    ):
        await served.store.create_topic(TOPIC, Kind.KV, CONFIG)
        rows = [Record(op=Op.PUT, key=key, data=b"v") for key in (b"gone", b"stays")]
        await append(served.store, TOPIC, Batch.from_rows(rows))
        async with open_fold(tmp_path / "f", TOPIC, key_prefixes=[b"g", b"s"]) as fold, asyncio.TaskGroup() as group:
            following = group.create_task(fold.follow(client, FollowOptions(refresh_s=0.2), random_source=NoJitter(1)))
            await served.until(lambda: fold.state().level)
            await served.store.delete_records(TOPIC, match=Match(MatchField.KEY, MatchKind.EQ, b"gone"))
            await served.until(lambda: fold.get(b"gone") is None)
            assert [record.key for record in fold.range()] == [b"stays"]
            following.cancel()
