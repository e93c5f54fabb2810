"""The client over a delivery whose streams break, end and move at any frame: its reader sees the log under its filter
once and in order, and has the fold after each snapshot, whether one that broke off begins anew or goes on."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.client.transport.topology import Topology
from eddyline.client.watch.events import (
    CaughtUp,
    Lost,
    Records,
    SnapshotBegan,
    SnapshotEnded,
    SnapshotResumed,
    TopicGone,
)
from eddyline.client.watch.plan import AtRevision, WatchTopic
from eddyline.core.errors import NotReady
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.delivery.watch.subscriber import Subscriber
from eddyline.v1 import delivery_pb2 as pb
from tests.support.clients.clients import NoJitter, client_at
from tests.support.delivery.role import ServedDelivery, served_delivery
from tests.support.hang import HANG_S
from tests.support.models.filter_spec import Wish, fold_of
from tests.support.store.simulated import all_rows, append, kv_topic

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from eddyline.client.watch.events import WatchEvent

KEYS = [b"%s/%02d" % (letter, number) for letter in (b"a", b"b") for number in range(40)]
VALUE_BYTES = 12_000
"""80 of them are about fifteen frames."""
HEARTBEAT_MS = 100


def break_streams(monkeypatch: pytest.MonkeyPatch, random: Random) -> None:
    """Let each stream break, end or send its reader elsewhere after some frames."""
    whole = Subscriber.frames

    async def frames(self: Subscriber) -> AsyncGenerator[bytes, None]:
        left = random.choice((1, 4, 9, 30))
        async for frame in whole(self):
            yield frame
            left -= 1
            if left == 0:
                way = random.choice(("break", "end", "move"))
                if way == "break":
                    raise NotReady("the test broke it")
                if way == "end":
                    return
                self.leave_after(0, pb.GOING_AWAY_REASON_AGE)

    monkeypatch.setattr(Subscriber, "frames", frames)


class Reader:
    """The view that a reader builds from the client's events."""

    def __init__(self, records: list[Record], wish: Wish) -> None:
        self._records = records
        self._wish = wish
        self.values: dict[bytes, int] = {}
        self.seqs: list[int] = []
        self.begin_seq = 0
        self.seq = 0
        self.resumed = 0
        self._after_key, self._fold_seq = b"", 0

    def take(self, event: WatchEvent) -> None:
        match event:
            case SnapshotBegan():
                self.values, self.seqs = {}, []
                self._after_key, self._fold_seq = b"", 0
            case SnapshotResumed():
                self.resumed += 1
                self._after_key, self._fold_seq = event.after_key, event.fold_seq
                self.values = {key: seq for key, seq in self.values.items() if key <= event.after_key}
            case Records():
                for record in event.records:
                    assert record.key is not None
                    assert self._wish.shows(record)
                    if event.in_snapshot:
                        assert record.key > self._after_key or record.seq > self._fold_seq, "brought before"
                    else:
                        assert record.seq > self.seq, "a double"
                        self.seqs.append(record.seq)
                    self.values.pop(record.key, None)
                    if record.op == Op.PUT:
                        self.values[record.key] = record.seq
                if not event.in_snapshot:
                    self.seq = event.position.seq
            case SnapshotEnded():
                self.begin_seq = self.seq = event.position.seq
                fold = fold_of(self._records, up_to_seq=event.fold_seq)
                assert self.values == {key: found.seq for key, found in fold.items() if self._wish.shows(found)}
            case CaughtUp():
                pass
            case Lost() | TopicGone():
                raise AssertionError("nothing is lost or goes")

    def judge(self) -> None:
        """It has each record that it is to see, once and in order."""
        assert self.seqs == [
            record.seq for record in self._records if record.seq > self.begin_seq and self._wish.shows(record)
        ]


class World:
    """The topic and its writer."""

    def __init__(self, cluster: ServedDelivery, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self.records: list[Record] = []

    async def write(self, *keys: bytes) -> None:
        """One append; it is in `records` before anybody hears of it."""
        rows = []
        for key in keys:
            op = Op.PUT if self._random.random() < 0.8 else Op.DELETE
            data = bytes(VALUE_BYTES) if op == Op.PUT else None
            rows.append(Record(op=op, key=key, data=data, tag=self._random.choice(("red", "blue"))))
        await append(self._cluster.store, "kv", Batch.from_rows(rows))
        self.records += await all_rows(self._cluster.store, "kv", len(self.records))

    async def write_for_a_while(self) -> None:
        for _ in range(60):
            await self.write(*self._random.sample(KEYS, self._random.choice((1, 5))))
            self._cluster.clock.advance(self._random.random() / 5)
            for _ in range(self._random.randrange(20)):
                await asyncio.sleep(0)

    async def pass_time(self) -> None:
        while True:
            self._cluster.clock.advance(0.05)
            # faster, and a scan is over before its reader had a turn, again and again
            for _ in range(50):
                await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(8))
async def test_reader_sees_the_log_once_whatever_its_streams_do(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    async with (
        served_delivery(seed=seed, topic_buffer_bytes=random.choice((0, 50_000, 1 << 24))) as cluster,
        client_at(Topology("local", (), (), (cluster.address,)), random_source=NoJitter(seed)) as client,
    ):
        await kv_topic(cluster.store)
        world = World(cluster, random)
        await world.write(*KEYS)
        break_streams(monkeypatch, random)
        wishes = [Wish(), Wish(key_prefixes=(b"a/",)), Wish(tags=("red",)), Wish(ignore_deletes=True), Wish()]
        wanted = [WatchTopic("kv", "snapshot", wish.key_prefixes, wish.tags) for wish in wishes]
        wanted[3] = WatchTopic("kv", "earliest", ignore_deletes=True)
        wanted[4] = WatchTopic("kv", AtRevision(1), heals=True)
        readers = [Reader(world.records, wish) for wish in wishes]

        last_seq = 0

        async def read(number: int) -> None:
            reader, resumes = readers[number], number != 2
            async with client.watch(wanted[number], heartbeat_ms=HEARTBEAT_MS, resume_snapshots=resumes) as events:
                async for event in events:
                    reader.take(event)
                    if last_seq and reader.seq >= last_seq:
                        return

        async with asyncio.TaskGroup() as tasks, asyncio.timeout(HANG_S):
            reading = [tasks.create_task(read(number)) for number in range(len(wanted))]
            await world.write_for_a_while()
            passing = tasks.create_task(world.pass_time())
            last_seq = len(world.records) + 1
            last = Record(op=Op.PUT, key=b"a/end", data=b"", tag="red")
            await append(cluster.store, "kv", Batch.from_rows([last]))
            world.records += await all_rows(cluster.store, "kv", len(world.records))
            await asyncio.wait(reading)
            passing.cancel()
        for reader in readers:
            reader.judge()
