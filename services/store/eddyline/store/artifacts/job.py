"""One long piece of blocking work on a thread, watched from the loop: it tells how far it is, and ends when told.

I1: whoever breaks off waits until the work has ended, so that what it holds can be closed. I2: the work takes half of the
interpreter at most: after each 10 ms it pauses as long.
Threading: `Job` belongs to the work's thread, but for `progress`, which is replaced as a whole, and `stop`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Final, TypeVar

from eddyline.core.model.artifact import ArtifactProgress
from eddyline.store.write.engine import settled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from eddyline.core.runtime.clock import Clock
    from eddyline.store.runtime.workers import Worker

T = TypeVar("T")

PROGRESS_S: Final = 1.0
WORK_S: Final = 0.01
PAUSE_S_MAX: Final = 0.02
"""A step that took longer, waiting for a disk or a network, has left the interpreter to others."""


class Stopped(Exception):
    """Nobody wants the work any more."""


class Job:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self.progress = ArtifactProgress("begin", 0)
        self._clock = clock
        self._stop = Event()
        self._since_s = clock.monotonic_s()

    def tell(self, stage: str, done_count: int, total_count: int = 0) -> None:
        """Say how far it is.

        Raises:
            Stopped: end here.
        """
        self.progress = ArtifactProgress(stage, done_count, total_count)
        worked_s = self._clock.monotonic_s() - self._since_s
        if self._stop.is_set() or (worked_s > WORK_S and self._stop.wait(min(worked_s, PAUSE_S_MAX))):
            raise Stopped
        if worked_s > WORK_S:
            self._since_s = self._clock.monotonic_s()

    def stop(self) -> None:
        """Have it end; from any thread."""
        self._stop.set()


async def watched(
    worker: Worker, clock: Clock, work: Callable[[Job], T], result: list[T]
) -> AsyncGenerator[ArtifactProgress, None]:
    """Run `work` on the worker and yield how far it is each second; its outcome is put into `result` at the end. Whoever
    breaks off closes it, and has waited for the end of the work then.

    Raises:
        what `work` raises.
    """
    job = Job(clock)
    future = worker.submit(partial(work, job))
    try:
        while not future.done():
            await asyncio.wait([future], timeout=PROGRESS_S)
            if not future.done():
                yield job.progress
    finally:
        if not future.done():
            job.stop()
            with suppress(Exception):  # whoever broke off wants to hear of nothing
                await settled(future)
    result.append(future.result())
