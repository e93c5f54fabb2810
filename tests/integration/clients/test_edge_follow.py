"""A local fold of a real cluster, while its process, delivery and the store are killed and its topic is made anew."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest

from eddyline.client.connect import connect
from eddyline.client.local_fold.local_fold import read_fold
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.record import Op, Record
from tests.support.cluster.processes import free_address, process, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.client.connect import Client
    from eddyline.client.local_fold.local_fold import LocalFoldState

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TOPIC: Final = "t"
CAP_RECORDS: Final = 400
"""So few that a follower that is away for a moment finds a gap."""
KEYS: Final = 150
LIVES: Final = 6
SETTLE_S: Final = 60.0
Values = dict[bytes, bytes]


@dataclass(slots=True)
class Cluster:
    """A store and two deliveries, each at an address of its own that it comes back to."""

    data_dir: Path
    store: str = field(default_factory=free_address)
    deliveries: tuple[str, str] = field(default_factory=lambda: (free_address(), free_address()))

    @property
    def environment(self) -> dict[str, str]:
        return {
            "EDDYLINE_COMMON_STORE_ADDRESSES": self.store,
            "EDDYLINE_COMMON_DELIVERY_ADDRESSES": ",".join(self.deliveries),
        }

    @asynccontextmanager
    async def store_process(self) -> AsyncIterator[asyncio.subprocess.Process]:
        settings = {"EDDYLINE_STORE_LISTEN": self.store, "EDDYLINE_STORE_DATA_DIR": str(self.data_dir)}
        async with process("eddyline.store", **settings, **self.environment) as started:
            await serving(self.store)
            yield started

    @asynccontextmanager
    async def delivery_process(self, number: int) -> AsyncIterator[asyncio.subprocess.Process]:
        settings = {"EDDYLINE_DELIVERY_LISTEN": self.deliveries[number]}
        async with process("eddyline.delivery", **settings, **self.environment) as started:
            await serving(self.deliveries[number])
            yield started


@dataclass(slots=True)
class Written:
    """Acknowledged appends, by epoch: each append's last seq, and the fold after it."""

    folds: dict[int, dict[int, Values]] = field(default_factory=dict)
    over: bool = False

    async def write(self, client: Client, chance: random.Random, pause_s: float) -> None:
        """Append until it is over; each append once, whatever is killed."""
        number = 0
        while not self.over:
            records = [_change(chance, number * 100 + at) for at in range(chance.randint(1, 30))]
            number += 1
            result = await client.append(TOPIC, records, idempotency_key=f"w{number}", create=None, timeout_s=60)
            self._take(result.epoch, result.first_seq, records)
            await asyncio.sleep(pause_s)

    def _take(self, epoch: int, first_seq: int, records: list[Record]) -> None:
        folds = self.folds.setdefault(epoch, {0: {}})
        values = dict(folds[max(folds)])
        for seq, record in enumerate(records, first_seq):
            assert record.key is not None
            if record.op == Op.DELETE:
                values.pop(record.key, None)
            else:
                values[record.key] = record.data or b""
            folds[seq] = dict(values)


def _change(chance: random.Random, number: int) -> Record:
    key = b"k%d" % chance.randrange(KEYS)
    if chance.random() < 0.2:
        return Record(op=Op.DELETE, key=key)
    return Record(op=Op.PUT, key=key, data=b"%d " % number * chance.randrange(30))


@dataclass(slots=True)
class Edge:
    """`eddyline edge follow` as a process, killed now and then; `seen` is what its file had after each kill."""

    path: Path
    cluster: Cluster
    seen: list[tuple[LocalFoldState, Values]] = field(default_factory=list)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[asyncio.subprocess.Process]:
        words = ("edge", "follow", TOPIC, "--file", str(self.path), "--cluster", ",".join(self.cluster.deliveries))
        async with process("eddyline.cli", *words) as started:
            yield started

    def look(self) -> tuple[LocalFoldState, Values]:
        """The present content of the file, read by the public API."""
        fold = read_fold(self.path)
        return fold.state(), {record.key or b"": record.data or b"" for record in fold.range()}

    def seq(self) -> int:
        """The seq of the file; 0 = there is none."""
        try:
            return read_fold(self.path).state().seq
        except FileNotFoundError:
            return 0

    async def moved(self, before: int) -> int:
        """Wait until the file is somewhere else; where."""
        async with asyncio.timeout(SETTLE_S):
            while True:
                now = self.seq()
                if now != before:
                    return now
                await asyncio.sleep(0.02)

    async def level_with(self, seq: int, epoch: int) -> Values:
        """Wait until the file is there."""
        async with asyncio.timeout(SETTLE_S):
            while True:
                state, values = self.look()
                if (state.epoch, state.seq) == (epoch, seq):
                    return values
                await asyncio.sleep(0.1)


async def kill_followers(edge: Edge, chance: random.Random, lives: int) -> None:
    """Follow so many times, each killed a moment after its file has moved on; `edge.seen` has what it left."""
    for _ in range(lives):
        before = edge.seen[-1][0].seq if edge.seen else 0
        async with edge.following() as started:
            assert await edge.moved(before) > before
            await asyncio.sleep(chance.uniform(0.0, 1.5))
            started.kill()
            await started.wait()
        edge.seen.append(edge.look())


async def kill_deliveries(cluster: Cluster, number: int, chance: random.Random, written: Written) -> None:
    """Run a delivery and kill it, again and again, until all is over."""
    while not written.over:
        async with cluster.delivery_process(number) as started:
            await asyncio.sleep(chance.uniform(2.0, 6.0))
            started.kill()
            await started.wait()


async def test_whatever_is_killed_the_file_is_the_fold_at_its_place(tmp_path: Path) -> None:
    chance = random.Random(7)
    cluster = Cluster(tmp_path / "store")
    edge, written = Edge(tmp_path / "t.fold", cluster), Written()

    async with AsyncExitStack() as roles:
        store = await roles.enter_async_context(cluster.store_process())
        async with connect(cluster.store) as client:
            await client.create_topic(TOPIC, Kind.KV, TopicConfig(cap_records=CAP_RECORDS))
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(written.write(client, random.Random(8), 0.02))
                for number in (0, 1):
                    group.create_task(kill_deliveries(cluster, number, chance, written))
                following = group.create_task(kill_followers(edge, chance, LIVES))
                await asyncio.sleep(8)
                store.kill()
                await store.wait()
                await roles.enter_async_context(cluster.store_process())
                await following
                written.over = True
                await writing
            head = (await client.get_topic(TOPIC)).head_seq
            epoch = max(written.folds)
            async with cluster.delivery_process(0), edge.following():
                assert await edge.level_with(head, epoch) == written.folds[epoch][head]
                fold = read_fold(edge.path)
                assert list(fold.range()) == [record async for record in client.range(TOPIC)]
                await made_anew(client, written)
                head = (await client.get_topic(TOPIC)).head_seq
                epoch = max(written.folds)
                assert await edge.level_with(head, epoch) == written.folds[epoch][head]
    assert len(edge.seen) == LIVES
    for state, values in edge.seen:
        assert values == written.folds[state.epoch][state.seq], f"at {state.seq}"


async def made_anew(client: Client, written: Written) -> None:
    """The topic is deleted, and another of its name made."""
    await client.delete_topic(TOPIC)
    await client.create_topic(TOPIC, Kind.KV)
    written.over = False
    async with asyncio.TaskGroup() as group:
        group.create_task(written.write(client, random.Random(9), 0.0))
        await asyncio.sleep(0.5)
        written.over = True
