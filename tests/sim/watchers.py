"""Subscribers of a delivery role in a simulation: they outlive its store and the role itself, and resume where they were."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Protocol

from eddyline.core.clock import sleep, wait_event
from eddyline.core.cursor import Cursor
from eddyline.core.errors import EddylineError, StoreUnreachable
from eddyline.core.record import Op
from eddyline.core.wire import answer_from_columns, answer_from_rows, gap_from_pb
from eddyline.delivery.config import DeliverySettings
from eddyline.delivery.dispatch import SEND_BYTES_MAX
from eddyline.delivery.role import DeliveryRole
from eddyline.delivery.watches import Point, WantedTopic, WatchRequest
from eddyline.v1 import delivery_pb2 as pb
from tests.sim.readers import Reader
from tests.sim.wire import cut_by

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from random import Random

    from eddyline.core.batch import Batch
    from eddyline.core.store_link import StoreLink
    from tests.sim.world import World
    from tests.support.manual_clock import ManualClock

SMALL_RING_BYTES = 20_000


class Place(Protocol):
    """Where a delivery role runs."""

    random: Random
    clock: ManualClock


class Delivery:
    """A delivery role that dies now and then, unless it is `calm`; `role` is None meanwhile. Some are under pressure: frames
    are joined."""

    content = True

    def __init__(self, world: Place, link: StoreLink) -> None:
        self._world, self._link = world, link
        self._gone = asyncio.Event()
        self.calm = False
        self.role: DeliveryRole | None = None

    async def live(self) -> None:
        """One role after another, for ever. Rings are small in some, so that subscribers fall back to the log."""
        random = self._world.random
        while True:
            size = random.choice((0, SMALL_RING_BYTES, 16 << 20))
            settings = DeliverySettings(buffer_bytes=size, topic_buffer_bytes=size)
            role = DeliveryRole(self._link, clock=self._world.clock, random=random, settings=settings)
            role.figures.queued_bytes = random.choice((0, SEND_BYTES_MAX // 2, SEND_BYTES_MAX))
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(role.run())
                self.role, self._gone = role, asyncio.Event()
                await sleep(self._world.clock, random.uniform(2, 15))
                while self.calm:
                    await sleep(self._world.clock, 1)
                self.role = None
                self._gone.set()
                running.cancel()
            await sleep(self._world.clock, random.uniform(0, 1))

    async def stream(
        self, stream: Callable[[DeliveryRole], Coroutine[object, object, None]], *, cut_s: float = math.inf
    ) -> None:
        """One stream, if there is a role, for as long as it lives at most, or `cut_s`.

        Raises:
            what `stream` does, or StoreUnreachable.
        """
        if self.role is not None:
            await cut_by(self._break_off(self._gone, cut_s), stream(self.role))

    async def _break_off(self, gone: asyncio.Event, cut_s: float) -> None:
        if math.isinf(cut_s):
            await gone.wait()
        elif not await wait_event(self._world.clock, gone, cut_s):
            raise StoreUnreachable("the stream was cut")
        raise StoreUnreachable("the role is gone")


class Watcher:
    """One subscriber of some topics, by cursors or by token; each stream lasts for some frames."""

    def __init__(self, world: World, delivery: Delivery, topics: tuple[str, ...], *, columns: bool) -> None:
        self._world, self._delivery = world, delivery
        self._columns = columns
        self._token = b""
        self.streams = 0
        self.readers = {topic: Reader(world, topic) for topic in topics}

    @property
    def content(self) -> bool:
        return all(reader.content for reader in self.readers.values())

    async def live(self) -> None:
        """Watch for ever."""
        while True:
            with suppress(EddylineError):
                await self._delivery.stream(self._stream)
            await sleep(self._world.clock, self._world.random.uniform(0, 0.5))

    async def _stream(self, role: DeliveryRole) -> None:
        random = self._world.random
        self.streams += 1
        wanted = tuple(
            WantedTopic(topic, Cursor(topic, reader.epoch, reader.seq)) for topic, reader in self.readers.items()
        )
        token = self._token if random.random() < 0.5 else b""
        request = WatchRequest(wanted, token, self._columns, heartbeat_s=0.5)
        left = random.randrange(1, 200)
        async with role.watches.open(request) as subscriber, aclosing(subscriber.frames()) as frames:
            async for data in frames:
                self._take(pb.WatchTopicsResponse.FromString(data))
                left -= 1
                if left == 0:
                    return
                if random.random() < 0.1:
                    await sleep(self._world.clock, random.uniform(0, 0.1))

    def _take(self, frame: pb.WatchTopicsResponse) -> None:
        self._token = frame.resume_token or self._token
        reader = self.readers.get(frame.topic)
        if reader is None:
            return
        reader.epoch = reader.epoch or frame.cursor.epoch
        match frame.WhichOneof("frame"):
            case "gap":
                reader.take(gap_from_pb(frame.gap), frame.cursor.seq)
            case "rows" | "columns":
                reader.take(batch_of(frame), frame.cursor.seq)
            case other:
                raise AssertionError(f"{frame.topic}: {other} was not asked for")


class SnapshotWatcher:
    """A subscriber that keeps the current values, of a topic that loses nothing: at the end it has what the fold has."""

    def __init__(self, world: World, delivery: Delivery, topic: str) -> None:
        self._world, self._delivery, self.topic = world, delivery, topic
        self._token = b""
        self._building: dict[bytes, int] | None = None
        self._whole = True
        self.resumed = 0
        self.values: dict[bytes, int] = {}
        self.seq = 0
        self.snapshots = 0

    @property
    def content(self) -> bool:
        book = self._world.book.current(self.topic)
        return book is not None and self.seq >= book.last_seq

    async def live(self) -> None:
        """Watch for ever."""
        while True:
            with suppress(EddylineError):
                await self._delivery.stream(self._stream)
            await sleep(self._world.clock, self._world.random.uniform(0, 0.5))

    async def _stream(self, role: DeliveryRole) -> None:
        random, book = self._world.random, self._world.book.current(self.topic)
        if book is None:
            return
        goes_on = self._building is not None and self._token and random.random() < 0.7
        anew = not self.seq or random.random() < 0.3
        start = Point.SNAPSHOT if anew or goes_on else Cursor(self.topic, book.epoch, self.seq)
        left = random.randrange(1, 100)
        if not goes_on:
            self._building, self._token = None, b""
        request = WatchRequest(
            (WantedTopic(self.topic, start),), self._token, columns=True, heartbeat_s=0.1, resume_snapshots=True
        )
        async with role.watches.open(request) as subscriber, aclosing(subscriber.frames()) as frames:
            async for data in frames:
                self._take(pb.WatchTopicsResponse.FromString(data))
                left -= 1
                if left == 0:
                    break
                if self._building is not None and random.random() < 0.2:
                    await sleep(self._world.clock, random.uniform(0, 0.2))

    def _take(self, frame: pb.WatchTopicsResponse) -> None:
        if self._building is not None:
            self._token = frame.resume_token or self._token
        match frame.WhichOneof("frame"):
            case "snapshot_begin":
                self._building, self._whole = {}, True
            case "snapshot_resume":
                assert self._building is not None
                after_key = frame.snapshot_resume.after_key
                self._building = {key: seq for key, seq in self._building.items() if key <= after_key}
                self._whole = False
                self.resumed += 1
            case "snapshot_end":
                assert self._building is not None
                assert not self._whole or len(self._building) == frame.snapshot_end.count
                self._token = b""
                self.values, self._building = self._building, None
                self.seq = frame.snapshot_end.fold_seq
                self.snapshots += 1
            case "rows" | "columns" if self._building is not None:
                for row in batch_of(frame).to_rows():
                    assert row.key is not None
                    self._building.pop(row.key, None)
                    if row.op == Op.PUT:
                        self._building[row.key] = row.seq
            case "rows" | "columns":
                for row in batch_of(frame).to_rows():
                    assert row.seq == self.seq + 1, f"{self.topic}: {self.seq + 1} was to come, and {row.seq} came"
                    assert row.key is not None
                    self.seq = row.seq
                    self.values.pop(row.key, None)
                    if row.op == Op.PUT:
                        self.values[row.key] = row.seq
            case "gap":
                raise AssertionError(f"{self.topic}: a gap where nothing was lost")

    def judge(self) -> None:
        """At the end."""
        book = self._world.book.current(self.topic)
        assert book is not None
        expected: dict[bytes, int] = {}
        for record in book.records:
            assert record.key is not None
            expected.pop(record.key, None)
            if record.op == Op.PUT:
                expected[record.key] = record.seq
        assert self.values == expected, f"{self.topic}: the subscriber has other values than the fold"


def batch_of(frame: pb.WatchTopicsResponse) -> Batch:
    """A frame's records."""
    if frame.WhichOneof("frame") == "columns":
        return answer_from_columns(frame.columns)
    return answer_from_rows(frame.rows)
