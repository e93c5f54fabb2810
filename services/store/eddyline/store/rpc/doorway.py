"""Whether the shard may be called: not before it is recovered, not when it stops.

The server listens before recovery, so that health answers at once and a caller is told NOT_READY rather than nothing. When
the store stops, new calls are refused, short ones under way end by themselves, and those that would go on for ever or
wait long are ended by `until_closing`.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from eddyline.core.errors import NotReady
from eddyline.store.rpc.duplex import beside

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from eddyline.store.ports import StoreDoor

T = TypeVar("T")


class Doorway:
    """Gives servicers the door while it is open."""

    def __init__(self) -> None:
        self._door: StoreDoor | None = None
        self._closing = asyncio.Event()

    def open(self, door: StoreDoor) -> None:
        """The shard is recovered."""
        self._door = door

    def close(self) -> None:
        """The shard stops: refuse new calls, end the long ones."""
        self._closing.set()

    def enter(self) -> StoreDoor:
        """The door.

        Raises:
            NotReady: the store is recovering or stopping.
        """
        if self._closing.is_set():
            raise NotReady("the store is stopping")
        if self._door is None:
            raise NotReady("the store is recovering")
        return self._door

    async def until_closing(self, work: Coroutine[object, object, T]) -> T:
        """Do `work`, cut off when the store stops.

        Raises:
            NotReady: the store stops; `work` was cancelled. And what `work` raises.
        """
        return await beside(self._refuse_when_closing(), work)

    async def _refuse_when_closing(self) -> None:
        await self._closing.wait()
        raise NotReady("the store is stopping")
