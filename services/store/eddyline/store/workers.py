"""Workers: where blocking calls run. One named thread each, or inline in a simulation.

Threading: `submit` is called on the event loop; jobs of one worker run one after the other in the order of submission,
and their futures resolve on the loop in that order. Jobs hold no loop state: they get immutable values and return counts.
A worker's queue is bounded by its callers: each awaits its job, or bounds how many it has under way.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Worker(Protocol):
    """Runs blocking jobs in order."""

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run `job` behind those before it; its result or exception comes on the loop."""

    def close(self) -> None:
        """Wait for the jobs under way and end."""


class ThreadWorker:
    """A worker on threads of its own: one keeps order; several only bound how many run at once."""

    def __init__(self, name: str, *, threads: int = 1) -> None:
        self._executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, job)

    def close(self) -> None:
        self._executor.shutdown(wait=True)


class InlineWorker:
    """Runs each job on the loop, some turns after it was submitted: a simulation's worker, deterministic.

    The turns stand for the time a disk takes: whatever became ready meanwhile (an acknowledgement on its way, another
    append) runs before the job does its work, as it does with a thread.
    """

    def __init__(self, *, turns: int = 4) -> None:
        self._turns = turns
        self._last: asyncio.Future[object] | None = None

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        before, self._last = self._last, future  # type: ignore[assignment]  # only its being done is looked at

        def turn(left: int) -> None:
            if left or (before is not None and not before.done()):
                loop.call_soon(turn, max(left - 1, 0))
                return
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
    """Root of what a simulated disk raises when the machine stops: no handler of ours may take it for an error."""
