"""Every subscriber gets every record once and in order, under any failure.

Streams killed at any frame and resumed by token or by cursors, disconnections of the store, rings too small to help,
slow readers.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.v1 import types_pb2 as types
from tests.support.delivery.role import ServedDelivery, at, served_delivery
from tests.support.store.simulated import append, log_topic, rows

if TYPE_CHECKING:
    from eddyline.v1 import delivery_pb2 as pb

TOPICS = ("one", "two", "three")
APPENDS = 60


class Reader:
    """A client that reads through any number of streams."""

    def __init__(self, cluster: ServedDelivery, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._token = b""
        self._cursors = {topic: types.Cursor(seq=0) for topic in TOPICS}
        self.got: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        self.streams = 0

    async def read(self, finished: asyncio.Event, heads: dict[str, int]) -> None:
        """Read until every written record has arrived."""
        while not (finished.is_set() and all(self._cursors[topic].seq >= heads[topic] for topic in TOPICS)):
            self.streams += 1
            by_token = bool(self._token) and self._random.random() < 0.5
            wanted = [at(topic, self._cursors[topic].seq, self._cursors[topic].epoch) for topic in TOPICS]
            self._random.shuffle(wanted)
            token = self._token if by_token else b""
            async with self._cluster.watch(*wanted, resume_token=token, heartbeat_ms=100) as watch:
                for _ in range(self._random.randrange(1, 12)):
                    self._take(await watch.next())
                    for _ in range(self._random.choice((0, 0, 0, 20))):
                        await asyncio.sleep(0)

    def _take(self, frame: pb.WatchTopicsResponse) -> None:
        if frame.resume_token:
            self._token = frame.resume_token
        if frame.topic:
            self.got[frame.topic] += [record.seq for record in frame.rows.records]
            assert frame.cursor.seq >= self._cursors[frame.topic].seq
            self._cursors[frame.topic] = frame.cursor


async def write(cluster: ServedDelivery, random: Random) -> None:
    for _ in range(APPENDS):
        values = ["x" * random.choice((1, 100, 4000, 40_000)) for _ in range(random.randint(1, 5))]
        await append(cluster.store, random.choice(TOPICS), rows(*values))
        for _ in range(random.randrange(10)):
            await asyncio.sleep(0)


async def break_things(cluster: ServedDelivery, random: Random, finished: asyncio.Event) -> None:
    while not finished.is_set():
        for _ in range(random.randrange(200)):
            await asyncio.sleep(0)
        cluster.clock.advance(random.random() / 10)
        if random.random() < 0.15:
            cluster.wire.cut_follow()
    cluster.wire.mend()


async def pass_time(cluster: ServedDelivery) -> None:
    while True:
        cluster.clock.advance(0.02)
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(8))
async def test_every_record_once_and_in_order_across_kills_and_resumes(seed: int) -> None:
    random = Random(seed)
    ring_bytes = random.choice((0, 20_000, 100_000, 1 << 24))
    async with served_delivery(seed=seed, topic_buffer_bytes=ring_bytes) as cluster:
        for topic in TOPICS:
            await log_topic(cluster.store, topic)
        finished = asyncio.Event()
        heads = dict.fromkeys(TOPICS, 0)
        readers = [Reader(cluster, Random(f"{seed} {number}")) for number in range(4)]
        async with asyncio.TaskGroup() as tasks:
            breaking = tasks.create_task(break_things(cluster, random, finished))
            reading = [tasks.create_task(reader.read(finished, heads)) for reader in readers]
            await write(cluster, Random(f"{seed} writer"))
            for topic in TOPICS:
                heads[topic] = (await cluster.store.get_topic(topic)).head_seq
            finished.set()
            await breaking
            passing = tasks.create_task(pass_time(cluster))
            await asyncio.wait(reading)
            passing.cancel()
        for reader in readers:
            assert reader.got == {topic: list(range(1, heads[topic] + 1)) for topic in TOPICS}
            assert reader.streams > 1
