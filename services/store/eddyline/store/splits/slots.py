"""Whose turn it is to read a split: a few streams are served at a time, others wait for their turn, and of these only so
many and only so long.

A stream holds its place until it ends, since it holds memory meanwhile: a stored batch, and what was made of it. Beneath,
reading and making a batch is one job, of which fewer run at once: readers of other calls keep threads, and appends the
interpreter.
I1: at most `STREAMS_AT_ONCE` streams have a place and at most `JOBS_AT_ONCE` jobs run, first come, first served.
I2: who goes, served or not, gives its place to the next.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import TooManyScans
from eddyline.core.runtime.clock import wait_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from eddyline.core.runtime.clock import Clock

STREAMS_AT_ONCE: Final = 8
"""Each holds a record batch, 768 KiB of cells (8 MiB in older segments), and its message, which may be in gRPC once more: 20
MiB, with older ones 200. A scan engine with two cores for each of four executors keeps as many busy."""
WAITING_MAX: Final = 64
"""Elsewhere unbounded. A waiting call costs no memory to speak of; more of them would wait longer than they may."""
WAIT_S_MAX: Final = 30.0
"""As long as any other call waits at most."""
JOBS_AT_ONCE: Final = 2
"""Half of the reader threads, and no more than there are cores on the smallest machine: one decompresses while another's
file is read."""
RETRY_AFTER_MS: Final = 1_000


class SplitSlots:
    """Places for streams, and turns for their jobs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free = STREAMS_AT_ONCE
        self._waiting: deque[asyncio.Event] = deque()
        self._jobs = asyncio.Semaphore(JOBS_AT_ONCE)

    @property
    def served(self) -> int:
        """Streams that have a place."""
        return STREAMS_AT_ONCE - self._free

    @property
    def waiting(self) -> int:
        """Calls that wait for one."""
        return len(self._waiting)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A stream's place, for as long as this is open.

        Raises:
            TooManyScans: too many wait, or none became free in time.
        """
        await self._take()
        try:
            yield
        finally:
            self._leave()

    def job(self) -> AbstractAsyncContextManager[None]:
        """A job's turn."""
        return self._jobs

    async def _take(self) -> None:
        if self._free:
            self._free -= 1
            return
        if len(self._waiting) >= WAITING_MAX:
            raise _too_many(f"{STREAMS_AT_ONCE} splits are read and {WAITING_MAX} reads wait")
        turn = asyncio.Event()
        self._waiting.append(turn)
        try:
            await wait_event(self._clock, turn, WAIT_S_MAX)
        except asyncio.CancelledError:
            if turn.is_set():
                self._leave()
            else:
                self._waiting.remove(turn)
            raise
        if not turn.is_set():
            self._waiting.remove(turn)
            raise _too_many(f"no place to read a split became free in {WAIT_S_MAX:.0f} s")

    def _leave(self) -> None:
        """Give the place to who waits longest."""
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self._free += 1


def _too_many(words: str) -> TooManyScans:
    return TooManyScans(words, scansMax=STREAMS_AT_ONCE, retryAfterMs=RETRY_AFTER_MS)
