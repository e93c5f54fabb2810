"""Blocking iterator over what a read yields, with a bounded buffer between the event loop and the reading thread.

I1: at most `ITEMS_MAX` items or, beyond one item, `BYTES_MAX` bytes are read ahead; a slow reader then holds the stream
back, by gRPC's flow control as far as the store. I2: an interrupted `next` loses no item: the next one goes on after
the last item returned. I3: an iterator that is dropped half-read ends its stream without waiting for it.
Threading: read by one thread at a time. `_HandOver` lives on the loop; the reader only takes from its deque, and each
counter has one writer.
Failure: as the asyncio iterator, `eddyline.client.transport.items`, whose error comes after the items before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from eddyline.client.transport.advice_note import add_advice
from eddyline.client.watch.events import Records
from eddyline.core.records.record import Record
from eddyline.core.records.record_sequence import key_data_bytes

if TYPE_CHECKING:
    from types import TracebackType

    from eddyline.client.sync.loop_thread import LoopThread
    from eddyline.client.transport.items import Items as AioItems

T = TypeVar("T")

ITEMS_MAX: Final = 512
"""One hand-over costs about 100 µs, an item 1 µs: below 100 items the hand-overs would cost more than the items."""
BYTES_MAX: Final = 1 << 20
"""As much as one answer of the store; 20 iterators of large records then hold 20 MiB."""


class Items(Generic[T]):
    """An iterator for `for`; `close` or leaving its `with` block ends it early, and so does dropping it."""

    def __init__(self, loop: LoopThread, items: AioItems[T]) -> None:
        self._loop = loop
        self._closed = False
        self._ahead = _HandOver(items)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """Return the next item.

        Raises:
            EddylineError: those of the method that gave the iterator. StreamOrder: it is spent after an earlier error.
            RuntimeError: the client is closed, or was made before a fork.
        """
        self._loop.check()
        ahead = self._ahead
        if not (self._closed or ahead.items or ahead.over):
            self._fill(ahead)
        if self._closed or not ahead.items:
            raise StopIteration
        item = ahead.take()
        if ahead.waits_for_room and ahead.has_room():
            self._loop.post(ahead.wake)
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Without `_ahead` where `__init__` was interrupted.
        if hasattr(self, "_ahead"):
            self.close()

    def close(self) -> None:
        """End the stream. Idempotent; does nothing once the client is closed or in a forked child."""
        if not self._closed:
            self._closed = True
            if not self._ahead.over:
                self._loop.spawn(self._ahead.stop)

    def _fill(self, ahead: _HandOver[T]) -> None:
        if not ahead.running and ahead.error is None:
            ahead.running = True
            self._loop.start(ahead.pump)
        self._loop.run(ahead.filled)
        if not ahead.items and ahead.error is not None:
            # Once: the next `next` lets the asyncio iterator resume, or say that it is spent.
            error, ahead.error = ahead.error, None
            add_advice(error)
            raise error


class _HandOver(Generic[T]):
    """The buffer, and the task on the loop that fills it."""

    def __init__(self, source: AioItems[T]) -> None:
        self.items: deque[T] = deque()
        self.running = False
        self.over = False
        self.error: Exception | None = None
        self.waits_for_room = False
        self._source = source
        self._put_bytes = 0
        self._taken_bytes = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._task: asyncio.Task[object] | None = None

    def take(self) -> T:
        """Take the oldest item. For the reader's thread."""
        item = self.items.popleft()
        self._taken_bytes += _nbytes(item)
        return item

    def has_room(self) -> bool:
        """True = at most half full, so that a waiting pump is woken once for many items."""
        return len(self.items) <= ITEMS_MAX // 2 and self._put_bytes - self._taken_bytes <= BYTES_MAX // 2

    def wake(self) -> None:
        """Let the pump go on."""
        self._room.set()

    async def pump(self) -> None:
        """Fill the buffer until the source ends or fails."""
        self._task = asyncio.current_task()
        try:
            async for first in self._source:
                for item in chain((first,), self._source.at_hand()):
                    self.items.append(item)
                    self._put_bytes += _nbytes(item)
                    self._arrived.set()
                    if len(self.items) >= ITEMS_MAX or self._put_bytes - self._taken_bytes >= BYTES_MAX:
                        await self._wait_for_room()
            self.over = True
        except Exception as error:
            # This task's root: the reader raises it after the items before it.
            self.error = error
        finally:
            self.running = False
            self._arrived.set()

    async def filled(self) -> None:
        """Wait until an item is there or the pump has ended."""
        while not self.items and self.running:
            self._arrived.clear()
            await self._arrived.wait()

    async def stop(self) -> None:
        """End pump and source."""
        self.over = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._source.aclose()

    async def _wait_for_room(self) -> None:
        self._room.clear()
        self.waits_for_room = True
        # A reader that took before it could see the flag does not wake this task, hence the check after it.
        if not self.has_room():
            await self._room.wait()
        self.waits_for_room = False


def _nbytes(item: object) -> int:
    if isinstance(item, Record):
        return len(item.key or b"") + len(item.data or b"")
    return key_data_bytes(item.records) if isinstance(item, Records) else 0
