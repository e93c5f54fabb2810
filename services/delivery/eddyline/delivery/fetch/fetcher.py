"""Fetcher: a fixed number of tasks that wait for the store on behalf of all subscribers.

A subscriber's own task never waits for the store, so that its heartbeats and its other topics continue while a read
hangs; and the number of running reads is bounded, however many subscribers have fallen behind. Jobs are served in order
of arrival. The queue is bounded by its users: each topic of a stream has at most one job in it.
Failure: a job handles its errors; one that raises is a defect, which ends the role.
Threading: event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

FETCHES_MAX: Final = 32
"""Reads running at once.

One connection of gRPC in Python carries 3 000 small calls a second with 8 in flight; 32 leave room for slow ones.
"""


class Fetcher:
    """A bounded pool of readers."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], Awaitable[None]]] = deque()
        self._wake = asyncio.Semaphore(0)
        self.read_count = 0
        """Reads submitted since the start."""

    def submit(self, job: Callable[[], Awaitable[None]], *, is_read: bool = True) -> None:
        """Run `job` when its turn comes. `is_read` False = it only releases resources."""
        self.read_count += is_read
        self._jobs.append(job)
        self._wake.release()

    async def run(self) -> None:
        """Serve jobs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(FETCHES_MAX):
                tasks.create_task(self._serve())

    async def _serve(self) -> NoReturn:
        while True:
            await self._wake.acquire()
            await self._jobs.popleft()()
