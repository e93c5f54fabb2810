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
    """Runs each job at once on the loop: a simulation's worker, deterministic."""

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(job())
        except (Exception, SimulatedStop) as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass


class SimulatedStop(BaseException):
    """Root of what a simulated disk raises when the machine stops: no handler of ours may take it for an error."""
