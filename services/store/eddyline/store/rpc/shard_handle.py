"""Handle to the shard: gives it to servicers only between recovery and stop.

The server listens before recovery, so that health answers at once and a caller gets NOT_READY instead of a refused
connection. When the store stops, the handle refuses new calls; short calls in flight complete, and those without an end or
with a long wait are cancelled by `cancel_on_stop`. `LocalShard` is the same shard as the forwarding interceptor uses it.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from eddyline.core.errors import NotReady, SourceNotFound
from eddyline.core.runtime.tasks import run_with
from eddyline.store.stats import RecoveryProgress
from eddyline.store.write.admission import memory_full

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine

    from eddyline.store.shard.api import ShardApi


T = TypeVar("T")


class ShardHandle:
    """Access to the shard for servicers, from the end of recovery to the stop."""

    def __init__(self) -> None:
        self._shard: ShardApi | None = None
        self._recovery = RecoveryProgress()
        self._stopping = asyncio.Event()
        self._shed = asyncio.Event()

    @property
    def recovery(self) -> RecoveryProgress:
        """Recovery's latest progress report."""
        return self._recovery

    def set_progress(self, progress: RecoveryProgress) -> None:
        """Store recovery's progress for status and metrics."""
        self._recovery = progress

    def open(self, shard: ShardApi) -> None:
        """Let servicers call the shard: it is recovered."""
        self._shard = shard

    def close(self) -> None:
        """Refuse new calls and cancel long ones: the store stops."""
        self._stopping.set()
        self._shed.set()

    def shed_appends(self) -> None:
        """End all open append streams with MemoryFull: memory is full."""
        if not self._stopping.is_set():
            ended, self._shed = self._shed, asyncio.Event()
            ended.set()

    def get(self) -> ShardApi:
        """Return the shard.

        Raises:
            NotReady: the store is recovering or stopping.
        """
        if self._stopping.is_set():
            raise NotReady("the store is stopping")
        if self._shard is None:
            raise NotReady("the store is recovering")
        return self._shard

    async def cancel_on_stop(self, work: Coroutine[object, object, T]) -> T:
        """Await `work`; cancel it when the store stops.

        Raises:
            NotReady: the store stops; `work` was cancelled. And what `work` raises.
        """
        return await run_with(work, background=self._raise_on_stop())

    async def cancel_on_shed(self, work: Coroutine[object, object, T]) -> T:
        """Await `work`; cancel it when the store stops or has no memory for appends.

        Raises:
            NotReady, MemoryFull: `work` was cancelled. And what `work` raises.
        """
        return await run_with(work, background=self._raise_on_shed(self._shed))

    async def each_until_stop(self, steps: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Yield the items of `steps` until the store stops. A caller that breaks off must close it; that closes `steps`.

        Raises:
            NotReady: the store stops. And what `steps` raises.
        """
        async with aclosing(steps):
            while (step := await self.cancel_on_stop(_next(steps))) is not None:
                if self._stopping.is_set():  # steps that never wait leave no moment in which to cancel them
                    raise NotReady("the store is stopping")
                yield step

    async def _raise_on_shed(self, shed: asyncio.Event) -> None:
        await shed.wait()
        if self._stopping.is_set():
            raise NotReady("the store is stopping")
        raise memory_full()

    async def _raise_on_stop(self) -> None:
        await self._stopping.wait()
        raise NotReady("the store is stopping")


async def _next(steps: AsyncGenerator[T, None]) -> T | None:
    return await anext(steps, None)


class LocalShard:
    """This process's shard for the forwarding interceptor: its index, and which sources it has."""

    def __init__(self, handle: ShardHandle, index: int) -> None:
        self._handle = handle
        self.index = index

    async def has_source(self, name: str) -> bool:
        """True = the shard has a source of this name.

        Raises:
            NotReady: the store is recovering or stopping. InvalidName.
        """
        try:
            await self._handle.get().get_source(name)
        except SourceNotFound:
            return False
        return True
