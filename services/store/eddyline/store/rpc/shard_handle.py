"""Whether the shard may be called: not before it is recovered, not when it stops.

The server listens before recovery, so that health answers at once and a caller is told NOT_READY rather than nothing. When
the store stops, new calls are refused, short ones under way end by themselves, and those that would go on for ever or
wait long are ended by `until_closing`.
Threading: event loop.

The shard behind the doorway, as the gate that forwards calls sees it.
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
    """Gives servicers the door while it is open."""

    def __init__(self) -> None:
        self._door: ShardApi | None = None
        self._recovery = RecoveryProgress()
        self._closing = asyncio.Event()
        self._appends_end = asyncio.Event()

    @property
    def recovery(self) -> RecoveryProgress:
        """How far recovery was when it last said so."""
        return self._recovery

    def recovering(self, progress: RecoveryProgress) -> None:
        """Recovery is so far."""
        self._recovery = progress

    def open(self, door: ShardApi) -> None:
        """The shard is recovered."""
        self._door = door

    def close(self) -> None:
        """The shard stops: refuse new calls, end the long ones."""
        self._closing.set()
        self._appends_end.set()

    def shed_appends(self) -> None:
        """Memory is full: end the streams of appends that there are."""
        if not self._closing.is_set():
            ended, self._appends_end = self._appends_end, asyncio.Event()
            ended.set()

    def enter(self) -> ShardApi:
        """The door.

        Raises:
            NotReady: the store is recovering or stopping.
        """
        if self._closing.is_set():
            raise NotReady("the store is stopping")
        if self._door is None:
            raise NotReady("the store is recovering")
        return self._door

    async def cancel_on_stop(self, work: Coroutine[object, object, T]) -> T:
        """Do `work`, cut off when the store stops.

        Raises:
            NotReady: the store stops; `work` was cancelled. And what `work` raises.
        """
        return await run_with(work, background=self._refuse_when_closing())

    async def cancel_on_shed(self, work: Coroutine[object, object, T]) -> T:
        """Do `work`, cut off when the store stops or has no memory for appends.

        Raises:
            NotReady, MemoryFull: `work` was cancelled. And what `work` raises.
        """
        return await run_with(work, background=self._refuse_when_shed(self._appends_end))

    async def each_until_closing(self, steps: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """What `steps` gives, cut off when the store stops. Whoever breaks off closes it, and `steps` with it.

        Raises:
            NotReady: the store stops. And what `steps` raises.
        """
        async with aclosing(steps):
            while (step := await self.cancel_on_stop(_next(steps))) is not None:
                if self._closing.is_set():  # steps that never wait leave no moment to be cut off in
                    raise NotReady("the store is stopping")
                yield step

    async def _refuse_when_shed(self, appends_end: asyncio.Event) -> None:
        await appends_end.wait()
        if self._closing.is_set():
            raise NotReady("the store is stopping")
        raise memory_full()

    async def _refuse_when_closing(self) -> None:
        await self._closing.wait()
        raise NotReady("the store is stopping")


async def _next(steps: AsyncGenerator[T, None]) -> T | None:
    return await anext(steps, None)


class LocalShard:
    """Its index, and which sources it has."""

    def __init__(self, doorway: ShardHandle, index: int) -> None:
        self._doorway = doorway
        self.index = index

    async def has_source(self, name: str) -> bool:
        """True = it keeps a source of this name.

        Raises:
            NotReady: not known yet, or any more. InvalidName.
        """
        try:
            await self._doorway.enter().get_source(name)
        except SourceNotFound:
            return False
        return True
