"""A wire with weather: calls are delayed, lost on their way there or back, and streams of followed topics are cut."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypeVar

from eddyline.core.errors import StoreUnreachable, Throttled
from eddyline.core.runtime.clock import sleep
from tests.support.sim.wire import Life, SimWire, WireFollow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from random import Random

    from eddyline.core.model.read import RangePage
    from eddyline.core.store_link.protocol import Follow, FollowEvent, StoreLink
    from eddyline.store.shard.shard import Shard
    from tests.support.manual_clock import ManualClock

T = TypeVar("T")

LOST = 0.03
DELAYED = 0.2
DELAY_S_MAX = 0.4
CUT = 0.01


class StormyWire(SimWire):
    """`SimWire` with weather, as far as delivery uses it. `calm` = from now on all goes well."""

    def __init__(self, clock: ManualClock, random: Random) -> None:
        super().__init__()
        self._clock, self._random = clock, random
        self._streams: set[Life] = set()
        self.calm = False
        self.lost_count = 0
        self.cut_count = 0

    @contextmanager
    def plugged(self, link: Shard) -> Iterator[None]:
        """Be plugged into one life of the store."""
        life = self._life = Life(link)
        try:
            yield
        finally:
            self._life = None
            life.end()
            for stream in self._streams:
                stream.end()

    async def one_way(self) -> None:
        """The possible fates of a message. Raises StoreUnreachable where it is lost."""
        if self.calm:
            return
        if self._random.random() < DELAYED:
            await sleep(self._clock, self._random.uniform(0, DELAY_S_MAX))
        if self._random.random() < LOST:
            self.lost_count += 1
            raise StoreUnreachable("a message was lost")

    async def event(self) -> None:
        """The possible fates of an event of a stream. Raises StoreUnreachable where that is cut, with all under way on
        it."""
        if self.calm:
            return
        if self._random.random() < DELAYED:
            await sleep(self._clock, self._random.uniform(0, DELAY_S_MAX))
        if self._random.random() < CUT:
            self.cut_count += 1
            raise StoreUnreachable("the stream was cut")

    async def around(self, name: str, call: Callable[[StoreLink], Awaitable[T]]) -> T:
        """Make one call; delivery's meet the weather on both ways."""
        if name not in ("get_topic", "read_records"):
            return await super().around(name, call)
        await self.one_way()
        answer = await super().around(name, call)
        await self.one_way()
        return answer

    async def range_entries(
        self, topic: str, *, key_prefix: bytes = b"", after_key: bytes = b"", limit: int = 0, min_seq: int = 0
    ) -> AsyncIterator[RangePage]:
        if not self.calm and self._random.random() < LOST:
            raise Throttled("too many scans", retryAfterMs=100)
        async for page in super().range_entries(
            topic, key_prefix=key_prefix, after_key=after_key, limit=limit, min_seq=min_seq
        ):
            await self.one_way()
            yield page

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[WireFollow]:
        await self.one_way()
        life = Life(self._alive().link)
        self._streams.add(life)
        try:
            async with life.link.follow() as inner:
                yield StormyFollow(self, life, inner)
        finally:
            self._streams.discard(life)


class StormyFollow(WireFollow):
    """A stream whose events are late, and that is cut; where a message to the store is lost all of it breaks."""

    def __init__(self, wire: StormyWire, stream: Life, inner: Follow) -> None:
        super().__init__(stream, inner)
        self._wire, self._stream = wire, stream

    async def add(self, follow_id: int, topic: str, *, epoch: int = 0, after_seq: int | None = None) -> None:
        await self._send()
        await super().add(follow_id, topic, epoch=epoch, after_seq=after_seq)

    async def remove(self, follow_id: int) -> None:
        await self._send()
        await super().remove(follow_id)

    async def grant(self, credit_bytes: int) -> None:
        await self._send()
        await super().grant(credit_bytes)

    async def __aiter__(self) -> AsyncIterator[FollowEvent]:
        async for event in super().__aiter__():
            await self._wire.event()
            yield event

    async def _send(self) -> None:
        try:
            await self._wire.one_way()
        except StoreUnreachable:
            self._stream.end()
            raise
