"""A long blocking job on a thread, supervised from the event loop: it reports progress, and ends on request.

I1: cancelling a run waits until the job has ended, so that its resources can be closed. I2: the job takes half of the
interpreter at most: after each 10 ms it pauses as long.
Threading: `ArtifactJob` belongs to the job's thread, except `progress`, which is replaced as a whole, and `stop`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Final, TypeVar

from eddyline.core.model.artifact import ArtifactProgress
from eddyline.store.write.engine import completed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from eddyline.core.runtime.clock import Clock
    from eddyline.store.runtime.workers import Worker

T = TypeVar("T")

PROGRESS_S: Final = 1.0
WORK_S: Final = 0.01
PAUSE_S_MAX: Final = 0.02
"""A longer step, waiting for a disk or a network, has already left the interpreter to other threads."""


class JobStopped(Exception):
    """The caller has cancelled the job."""


class ArtifactJob:
    """Progress, pauses and cancellation of a job; see the module."""

    def __init__(self, clock: Clock) -> None:
        self.progress = ArtifactProgress("begin", 0)
        self._clock = clock
        self._stop = Event()
        self._since_s = clock.monotonic_s()

    def report(self, stage: str, done_count: int, total_count: int = 0) -> None:
        """Report progress, and pause if it is time.

        Raises:
            Stopped: end the job here.
        """
        self.progress = ArtifactProgress(stage, done_count, total_count)
        worked_s = self._clock.monotonic_s() - self._since_s
        if self._stop.is_set() or (worked_s > WORK_S and self._stop.wait(min(worked_s, PAUSE_S_MAX))):
            raise JobStopped
        if worked_s > WORK_S:
            self._since_s = self._clock.monotonic_s()

    def stop(self) -> None:
        """Request the end of the job; from any thread."""
        self._stop.set()


async def run_with_progress(
    worker: Worker, clock: Clock, work: Callable[[ArtifactJob], T], result: list[T]
) -> AsyncGenerator[ArtifactProgress, None]:
    """Run `work` on the worker and yield its progress each second; append its result to `result` at the end.

    A caller that stops early must close the generator, which waits for the end of the work.

    Raises:
        Any error of `work`.
    """
    job = ArtifactJob(clock)
    future = worker.submit(partial(work, job))
    try:
        while not future.done():
            await asyncio.wait([future], timeout=PROGRESS_S)
            if not future.done():
                yield job.progress
    finally:
        if not future.done():
            job.stop()
            with suppress(Exception):  # a caller that stopped early wants no errors
                await completed(future)
    result.append(future.result())
