"""Every subscriber receives exactly the log under its filter, under any failure.

Streams killed at any frame and resumed by token, by token and cursors, or by cursors; the store's wire and its scans
interrupted; slots revoked; rings too small.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.topic import Kind
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.delivery.resume_token import ResumeTokens
from eddyline.delivery.rpc.watch import request_from_pb
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import types_pb2 as types
from tests.support.delivery.role import ServedDelivery, served_delivery
from tests.support.models.filter_spec import Wish
from tests.support.models.subscriber_view import Entry, Head, Judge, Opened, Started, View, lossless
from tests.support.store.simulated import all_rows, append, kv_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

TAGS = (None, "red", "blue")
NODES = (None, "near", "far")
KEYS = [f"{letter}/{number:02}".encode() for letter in "abc" for number in range(40)]
FILLED_BYTES = 15_000
APPENDS = 50
SUBSCRIBERS = 5


def some(random: Random, values: Sequence[str | None]) -> tuple[str, ...]:
    """Draw some of the names, often none."""
    names = [value for value in values if value is not None]
    return tuple(random.sample(names, random.choice((0, 0, 1))))


def wish_of(random: Random) -> Wish:
    by_value = random.random() < 0.35
    return Wish(
        key_prefixes=random.choice(((), (b"a/",), (b"a/0", b"c/"), (b"b/1",))),
        tags=some(random, TAGS) if by_value else (),
        exclude_nodes=some(random, NODES) if by_value else (),
        ignore_deletes=by_value and random.random() < 0.3,
        metadata_only=random.random() < 0.3,
    )


class World:
    """The topic, its writer, and the failures meanwhile."""

    def __init__(self, cluster: ServedDelivery, random: Random) -> None:
        self.cluster = cluster
        self._random = random
        self.records: list[Record] = []
        self.finished = asyncio.Event()
        self.head_seq = 0

    async def write(self, appends: int) -> None:
        """Append, with pauses. An acknowledged record is in `records` before any subscriber can receive it."""
        random = self._random
        for _ in range(appends):
            batch = Batch.from_rows([self._record() for _ in range(random.choice((1, 3, 30)))])
            await append(self.cluster.store, "kv", batch)
            await self.learn()
            for _ in range(random.randrange(12)):
                await asyncio.sleep(0)

    async def fill(self) -> None:
        """Write a large value to every key, so that a snapshot has about thirty frames."""
        for key in KEYS:
            record = self._record()._replace(op=Op.PUT, key=key, data=bytes(FILLED_BYTES))
            await append(self.cluster.store, "kv", Batch.from_rows([record]))
        await self.learn()

    async def learn(self) -> None:
        """Return the topic's records so far."""
        records = await all_rows(self.cluster.store, "kv", self.head_seq)
        self.records += records[max(0, len(self.records) - records[0].seq + 1) :] if records else []
        self.head_seq = len(self.records)

    async def break_things(self) -> None:
        """Let time pass and disconnect wires until all is written."""
        random, cluster = self._random, self.cluster
        while not self.finished.is_set():
            for _ in range(random.randrange(12)):
                await asyncio.sleep(0)
            cluster.clock.advance(random.random() / 5)
            if random.random() < 0.05:
                cluster.wire.cut_follow()
            if random.random() < 0.1:
                cluster.wire.pages_until_cut = random.randrange(3)
        while True:
            cluster.clock.advance(0.05)
            await asyncio.sleep(0)

    def _record(self) -> Record:
        random = self._random
        op = random.choices((Op.PUT, Op.DELETE, Op.PURGE), (8, 1, 1))[0]
        data = bytes(random.choice((0, 1, 40, 4000))) if op == Op.PUT else None
        return Record(op=op, key=random.choice(KEYS), data=data, tag=random.choice(TAGS), node=random.choice(NODES))


class Subscriber:
    """A client that reads through any number of streams."""

    def __init__(self, world: World, random: Random, epoch: int) -> None:
        self._world = world
        self._random = random
        wish = wish_of(random)
        self._resumes = random.random() < 0.7
        self._ways = random.choice((("token",), ("token", "both", "cursors")))
        # A cursor may be below the token's position: only the token covers records that the filter hid.
        self.view = View("a subscriber", "kv", wish, lazy="cursors" in self._ways, resumes=self._resumes)
        self._start = wish.topic("kv")
        began, point = 0, pb.START_POINT_TAIL
        kind = random.choice((*("snapshot",) * 6, "earliest", "revision", "time"))
        if kind == "snapshot":
            point = self._start.point = pb.START_POINT_SNAPSHOT
        elif kind == "earliest":
            point = self._start.point = pb.START_POINT_EARLIEST
        elif kind == "time":
            self._start.ts_ms = 0
        else:
            self._start.revision = random.randint(1, max(world.head_seq, 1))
            began = self._start.revision - 1
        self._place = Head(epoch, began)
        self._started: Entry = Started(point, self._place, self._place)
        self._within = kind == "snapshot"
        self._cursor: types.Cursor | None = None
        self._token = b""
        self._reported_seq = 0
        """Return the token's position; the cursor may be lower if a filter hid all records up to there."""
        self._at_token: tuple[list[Entry], types.Cursor | None, bool] = ([], None, False)
        self.streams = 0

    async def live(self) -> None:
        """Read until every written record has arrived."""
        random, world = self._random, self._world
        while not (world.finished.is_set() and self._has(world.head_seq)):
            self.streams += 1
            await self._stream(random.choice((2, 6, 12, 80)))

    def judge(self) -> Judge:
        """Check that it has exactly the log's records up to its position."""
        judge = Judge(self.view, {self._place.epoch: lossless(self._world.records, Kind.KV)})
        judge.go()
        assert not self._within
        assert judge.place[1] >= self._world.head_seq
        return judge

    def _has(self, seq: int) -> bool:
        return not self._within and self._cursor is not None and max(self._cursor.seq, self._reported_seq) >= seq

    async def _stream(self, frames: int) -> None:
        world, entries = self._world, self.view.entries
        wanted = pb.WatchTopic()
        wanted.CopyFrom(self._start)
        token = self._token
        way = self._random.choice(self._ways)
        if way == "token" and token:
            entries[:], self._cursor, self._within = self._at_token
        elif self._cursor is not None and not self._within:
            wanted.cursor.CopyFrom(self._cursor)
            if way == "cursors":
                token = b""
        elif not token:
            entries.clear()
            entries.append(self._started)
        if not token:
            self._reported_seq = 0
        entries.append(Opened())
        tokens = ResumeTokens([request_from_pb(pb.WatchTopicsRequest(topics=[wanted])).topics[0].signature()])
        async with world.cluster.watch(
            wanted, resume_token=token, heartbeat_ms=100, resume_snapshots=self._resumes
        ) as watch:
            for _ in range(frames):
                frame = await watch.next()
                if frame.resume_token:
                    places = tokens.decode(frame.resume_token)
                    entries += places.values()
                    self._reported_seq = places["kv"].cursor.seq
                if frame.topic:
                    self._take(frame)
                if frame.resume_token:
                    self._token, self._at_token = frame.resume_token, (list(entries), self._cursor, self._within)
                await world.learn()
                if world.finished.is_set() and self._has(world.head_seq):
                    return
                for _ in range(self._random.choice((0, 10, 30))):
                    await asyncio.sleep(0)

    def _take(self, frame: pb.WatchTopicsResponse) -> None:
        kind = frame.WhichOneof("frame")
        self.view.entries.append(frame)
        self._within = kind in ("snapshot_begin", "snapshot_resume") or (self._within and kind != "snapshot_end")
        if not self._within:
            self._cursor = frame.cursor


@pytest.mark.parametrize("seed", range(12))
async def test_every_subscriber_receives_the_log_under_its_filter(seed: int) -> None:
    random = Random(seed)
    ring_bytes = random.choice((0, 4_000, 1 << 24))
    async with served_delivery(seed=seed, topic_buffer_bytes=ring_bytes) as cluster:
        epoch = await kv_topic(cluster.store)
        world = World(cluster, random)
        await world.fill()
        subscribers = [Subscriber(world, Random(f"{seed} {number}"), epoch) for number in range(SUBSCRIBERS)]
        async with asyncio.TaskGroup() as tasks:
            breaking = tasks.create_task(world.break_things())
            living = [tasks.create_task(subscriber.live()) for subscriber in subscribers]
            await world.write(APPENDS)
            world.finished.set()
            await asyncio.wait(living)
            breaking.cancel()
        for subscriber in subscribers:
            subscriber.judge()
