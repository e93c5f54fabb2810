"""Batches of one source on their way to the store: a second one is sent while the first is being applied.

The store takes a batch only behind the position that it names, so order needs no care here: a second batch that overtakes
the first, or whose first failed, is refused and has no effect. It is then applied in its turn, with all retries of
`Forward.apply`.

I1: at most `STEPS_MAX` batches are in flight. I2: positions are taken over in the order of the batches, each after those
before it. I3: after a failure no batch behind it is taken over, and none is sent.
Threading: event loop; one task a batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.ingest.copy.cap_split import apply_within_cap

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from eddyline.core.records.batch import Batch
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.telemetry.tracing import OpenSpan
    from eddyline.ingest.copy.forward import Forward
    from eddyline.ingest.copy.position import StreamPosition

STEPS_MAX: Final = 2
"""One that is applied and one on its way. More would only make batches smaller: the store applies them one by one."""


class _SentBatch(NamedTuple):
    """A batch in flight: the position that it moves to, and its outcome."""

    new: StreamPosition
    done: asyncio.Future[None]
    task: asyncio.Task[None]


class Pipeline:
    """Batches in flight of one attempt, as tasks of its caller's group. `on_applied` gets each position taken over;
    `on_failed` is called when a batch has failed: the next call raises its error."""

    def __init__(
        self,
        forward: Forward,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        *,
        on_applied: Callable[[StreamPosition], None],
        on_failed: Callable[[], None],
    ) -> None:
        self._forward = forward
        self._clock = clock
        self._tasks = tasks
        self._on_applied = on_applied
        self._on_failed = on_failed
        self._steps: deque[_SentBatch] = deque()

    async def room(self) -> None:
        """Wait until another batch may be sent.

        Raises:
            as `apply_within_cap`, for a batch in flight.
        """
        await self._shorten(STEPS_MAX - 1)

    async def settle(self) -> None:
        """Wait until every batch is applied. Raises as `room`."""
        await self._shorten(0)

    async def send(self, batch: Batch | None, new: StreamPosition, trace: OpenSpan | None = None) -> None:
        """Send a batch that moves to `new`, behind those in flight. Raises as `room`."""
        await self.room()
        before = self._steps[-1] if self._steps else None
        applied = self._apply(batch, new, trace) if before is None else self._apply_behind(before, batch, new, trace)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._steps.append(_SentBatch(new, done, self._tasks.create_task(self._resolve(done, applied))))

    def cancel(self) -> None:
        """Cancel what is in flight: its outcome is unknown."""
        for step in self._steps:
            step.task.cancel()
            self._forward.forget_behind(step.new)
        self._steps.clear()

    async def _shorten(self, count: int) -> None:
        """Wait until at most `count` batches are in flight."""
        while self._steps and (len(self._steps) > count or self._steps[0].done.done()):
            await asyncio.shield(self._steps[0].done)  # one that failed stays, so that its error is raised again
            self._steps.popleft()

    async def _resolve(self, done: asyncio.Future[None], applied: Coroutine[None, None, None]) -> None:
        try:
            await applied
            done.set_result(None)
        except Exception as error:  # the caller's, who waits for the outcome
            done.set_exception(error)
            done.exception()  # read, if no caller waits any more
            self._on_failed()

    async def _apply(self, batch: Batch | None, new: StreamPosition, trace: OpenSpan | None) -> None:
        await apply_within_cap(self._forward, batch, new, moves=True, trace=trace)
        self._on_applied(new)

    async def _apply_behind(
        self, before: _SentBatch, batch: Batch | None, new: StreamPosition, trace: OpenSpan | None
    ) -> None:
        started_s = self._clock.monotonic_s()
        is_applied = await self._forward.try_behind(batch, before.new, new, trace)
        await asyncio.wait([before.done])
        self._forward.forget_behind(new)
        if before.done.exception() is not None:
            return  # its error ends the attempt
        if is_applied:
            self._forward.applied_behind(batch, new, started_s)
            self._on_applied(new)
        else:
            await self._apply(batch, new, trace)
