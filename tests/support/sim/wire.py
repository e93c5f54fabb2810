"""The wire between a store that dies and is born again and the roles that outlive it, all on one loop.

While a life of the store is plugged in, calls go to it; when it ends, every call under way and every later one is
`StoreUnreachable`, as a connection would have it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from eddyline.core.errors import StoreUnreachable
from tests.support.sim.fs import Crashed
from tests.support.sim.link_proxy import LinkProxy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine

    from eddyline.core.model.artifact import ArtifactProgress, FoldImported
    from eddyline.core.model.read import RangePage
    from eddyline.core.store_link.protocol import Follow, FollowEvent, StoreLink
    from eddyline.store.shard.shard import Shard

T = TypeVar("T")


class Life:
    """One life of a store."""

    def __init__(self, link: Shard) -> None:
        self.link = link
        self._over = asyncio.Event()

    def end(self) -> None:
        """Its calls break off."""
        self._over.set()

    async def call(self, call: Awaitable[T]) -> T:
        """The result of `call`, if the store lives so long."""
        if self._over.is_set():  # what never waits would not be cut
            close = getattr(call, "close", None)
            if close is not None:
                close()
            raise StoreUnreachable("the store is gone")

        async def guarded() -> T:
            try:
                return await call
            except Crashed as crashed:
                raise StoreUnreachable("the store died") from crashed

        return await cut_by(self._break_off(), guarded())

    async def _break_off(self) -> None:
        await self._over.wait()
        raise StoreUnreachable("the store is gone")


class SimWire(LinkProxy):
    """`StoreLink` over whatever life the store has just now."""

    topic = "log"
    content = True

    def __init__(self) -> None:
        self._life: Life | None = None

    async def run(self, link: Shard) -> None:
        """Be plugged in for one life."""
        life = self._life = Life(link)
        try:
            await asyncio.Event().wait()
        finally:
            self._life = None
            life.end()

    def _alive(self) -> Life:
        if self._life is None:
            raise StoreUnreachable("the store is away")
        return self._life

    async def around(self, name: str, call: Callable[[StoreLink], Awaitable[T]]) -> T:
        """Make one call while the store lives."""
        life = self._alive()
        return await life.call(call(life.link))

    async def range_entries(
        self, topic: str, *, key_prefix: bytes = b"", after_key: bytes = b"", limit: int = 0, min_seq: int = 0
    ) -> AsyncIterator[RangePage]:
        life = self._alive()
        pages = life.link.range_entries(topic, key_prefix=key_prefix, after_key=after_key, limit=limit, min_seq=min_seq)
        try:
            while (page := await life.call(anext(pages, None))) is not None:
                yield page
        finally:
            await pages.aclose()

    async def import_fold(
        self, topic: str, *, artifact: str = ""
    ) -> AsyncGenerator[ArtifactProgress | FoldImported, None]:
        life = self._alive()
        steps = life.link.import_fold(topic, artifact=artifact)
        try:
            while (step := await life.call(anext(steps, None))) is not None:
                yield step
        finally:
            await steps.aclose()

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[WireFollow]:
        life = self._alive()
        async with life.link.follow() as inner:
            yield WireFollow(life, inner)


class WireFollow:
    """A stream that breaks when the store dies."""

    def __init__(self, life: Life, inner: Follow) -> None:
        self._life = life
        self._inner = inner

    async def add(self, follow_id: int, topic: str, *, epoch: int = 0, after_seq: int | None = None) -> None:
        await self._life.call(self._inner.add(follow_id, topic, epoch=epoch, after_seq=after_seq))

    async def remove(self, follow_id: int) -> None:
        await self._life.call(self._inner.remove(follow_id))

    async def grant(self, credit_bytes: int) -> None:
        await self._life.call(self._inner.grant(credit_bytes))

    async def __aiter__(self) -> AsyncIterator[FollowEvent]:
        events = aiter(self._inner)
        while (event := await self._life.call(anext(events, None))) is not None:
            yield event


async def cut_by(breaking: Coroutine[object, object, None], work: Coroutine[object, object, T]) -> T:
    """Do `work` unless `breaking` raises StoreUnreachable first. A cancellation at the same moment is not lost.

    Rejected: a task of the group that fails. One that does so while its group is left makes the parent count as
    cancelled from then on, in Python 3.11.
    """
    broken: list[StoreUnreachable] = []
    done: list[T] = []
    failed: list[Exception] = []
    try:
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:

            async def watch() -> None:
                try:
                    await breaking
                except StoreUnreachable as error:
                    broken.append(error)
                    limit.reschedule(0)

            watching = tasks.create_task(watch())
            try:
                done.append(await work)
            except Exception as error:  # raised below as itself, not in a group
                failed.append(error)
            watching.cancel()
    except TimeoutError:
        raise broken[0] from None
    finally:
        breaking.close()
    if failed:
        raise failed[0]
    return done[0]
