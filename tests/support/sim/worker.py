"""A worker that runs its jobs on the event loop, for seeded simulations.

Threading: the event loop's thread alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class InlineWorker:
    """Implementation of `Worker` that runs each job on the event loop, `turns` turns after its submission; deterministic.

    The turns stand for the time of a disk: callbacks that become ready meanwhile (an acknowledgement, another append) run
    before the job, as they do with a thread.
    """

    def __init__(self, *, turns: int = 4, is_idle: bool = True) -> None:
        """Make a worker; not `is_idle` = it never says so, so that its caller gives it every job."""
        self._turns = turns
        self._tells_idle = is_idle
        self._last: asyncio.Future[object] | None = None
        self._unfinished = 0

    @property
    def is_idle(self) -> bool:
        return self._tells_idle and not self._unfinished

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._unfinished += 1
        previous, self._last = self._last, future  # type: ignore[assignment]  # only `done()` is called

        def turn(left: int) -> None:
            if left or (previous is not None and not previous.done()):
                loop.call_soon(turn, max(left - 1, 0))
                return
            self._unfinished -= 1
            try:
                result = job()
            except (Exception, SimulatedStop) as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        loop.call_soon(turn, self._turns)
        return future

    def close(self) -> None:
        pass


class SimulatedStop(BaseException):
    """Base of exceptions that a simulated disk raises when the machine stops; product code must not handle it."""
