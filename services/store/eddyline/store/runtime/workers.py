"""Workers: where blocking calls run. One named thread each, or inline in a simulation.

Threading: `submit` is called on the event loop; jobs of one worker run one after the other in the order of submission,
and their futures resolve on the loop in that order. Jobs hold no loop state: they get immutable values and return counts.
A worker's queue is bounded by its callers: each awaits its job, or bounds how many it has under way.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Worker(Protocol):
    """Runs blocking jobs in order."""

    @property
    def is_idle(self) -> bool:
        """True = no job waits or runs, so that its caller may do one itself."""

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run `job` behind those before it; its result or exception comes on the loop."""

    def close(self) -> None:
        """Wait for the jobs under way and end."""


class _QueuedCall(NamedTuple):
    """A call, and who waits for it."""

    call: Callable[[], object]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class ThreadWorker:
    """A worker on threads of its own: one keeps order; several only bound how many run at once.

    In place of `ThreadPoolExecutor`, whose futures are made twice and locked at each step: the loop spends 12 to 18 us on
    a job, with that 47 (each group commit is one, `tests/bench/README.md`).
    """

    def __init__(self, name: str, *, threads: int = 1) -> None:
        self._jobs: SimpleQueue[_QueuedCall | None] = SimpleQueue()
        self._threads = [Thread(target=self._run, name=f"{name}_{number}", daemon=True) for number in range(threads)]
        self._is_closed = False
        # Each count has one writer: the event loop, and the thread if there is one.
        self._submitted = self._finished = 0
        for thread in self._threads:
            thread.start()

    @property
    def is_idle(self) -> bool:
        return len(self._threads) == 1 and self._submitted == self._finished

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        if self._is_closed:
            raise RuntimeError("the worker is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._submitted += 1
        self._jobs.put(_QueuedCall(job, future, loop))
        return future

    def close(self) -> None:
        self._is_closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            done = None if job.future.cancelled() else _work(job)
            self._finished += 1
            if done is not None:
                with suppress(RuntimeError):  # the loop is closed: no caller waits any more
                    job.loop.call_soon_threadsafe(done)
            del job, done  # what it holds is not kept until the next one


def _work(job: _QueuedCall) -> Callable[[], None]:
    """Run a job; return the callback that resolves its future, on the event loop."""
    try:
        return partial(_resolve, job.future, job.call())
    except BaseException as error:
        return partial(_reject, job.future, error)


def _resolve(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _reject(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
