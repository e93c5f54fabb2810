"""Slots of split reads: a few streams are served at a time; others wait, bounded in number and time.

A stream keeps its slot until it ends, since it holds memory meanwhile: a stored batch and the messages made of it. Reading
and encoding one batch is a job, and fewer jobs run at once: reads of other calls keep threads, appends keep the interpreter.
I1: at most `STREAMS_AT_ONCE` streams have a slot and at most `JOBS_AT_ONCE` jobs run, first come, first served.
I2: a stream that ends, served or not, passes its slot to the next.
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
"""[asyncio.Semaphore: unbounded] A waiting call costs next to no memory; more of them would exceed their wait timeout."""
WAIT_S_MAX: Final = 30.0
"""The longest wait of any other call."""
JOBS_AT_ONCE: Final = 2
"""Half of the reader threads, and no more than the cores of the smallest machine: one job decompresses while another reads
its file."""
RETRY_AFTER_MS: Final = 1_000


class SplitSlots:
    """Slots for streams, and for their jobs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free = STREAMS_AT_ONCE
        self._waiting: deque[asyncio.Event] = deque()
        self._jobs = asyncio.Semaphore(JOBS_AT_ONCE)

    @property
    def served(self) -> int:
        """Streams that have a slot."""
        return STREAMS_AT_ONCE - self._free

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot."""
        return len(self._waiting)

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[None]:
        """Hold a stream's slot while the context is open.

        Raises:
            TooManyScans: `WAITING_MAX` calls wait already, or no slot became free in `WAIT_S_MAX`.
        """
        await self._acquire()
        try:
            yield
        finally:
            self._release()

    def job(self) -> AbstractAsyncContextManager[None]:
        """Hold a job's slot while the context is open."""
        return self._jobs

    async def _acquire(self) -> None:
        if self._free:
            self._free -= 1
            return
        if len(self._waiting) >= WAITING_MAX:
            raise _too_many(f"{STREAMS_AT_ONCE} splits are being read and {WAITING_MAX} reads wait, the maximum")
        turn = asyncio.Event()
        self._waiting.append(turn)
        try:
            await wait_event(self._clock, turn, WAIT_S_MAX)
        except asyncio.CancelledError:
            if turn.is_set():
                self._release()
            else:
                self._waiting.remove(turn)
            raise
        if not turn.is_set():
            self._waiting.remove(turn)
            raise _too_many(f"no slot to read a split became free in {WAIT_S_MAX:.0f} s")

    def _release(self) -> None:
        """Pass the slot to the call that has waited longest."""
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self._free += 1


def _too_many(message: str) -> TooManyScans:
    return TooManyScans(message, scansMax=STREAMS_AT_ONCE, retryAfterMs=RETRY_AFTER_MS)
