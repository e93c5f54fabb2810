"""Queue of erasures: requested ones and due ones, one after the other, step by step.

A topic's deletes are due some hours after the first of them; the work begins after half of that time, for all such topics
together: they share the checkpoints that free WAL files.
I1: one erasure at a time. I2: a caller gets each step, and the end or the failure; if it leaves, its erasure continues.
Failure: the caller gets the error, and may repeat the request; due erasures are tried again at the next check.
Threading: event loop; only maintenance calls `step`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import NotReady, Throttled, TopicNotFound
from eddyline.core.model.deletion import EraseProgress
from eddyline.core.runtime.tasks import noop
from eddyline.store.stats import Stage
from eddyline.store.write.staged import read_only

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from eddyline.core.runtime.clock import Clock
    from eddyline.store.background.erasure import EraseJob, EraseStep
    from eddyline.store.catalog.catalog import ErasingEntry
    from eddyline.store.log.table import TopicTable
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.garbage import Garbage

DUE_CHECK_S: Final = 60.0
"""Interval of the search for due topics, among all topics: 10 ms for 100 000. The deadline is in hours."""
DUE_MAX: Final = 1000
"""Topics erased together: enough to make the two checkpoints cheap for each, few enough to be done within the hour."""
REQUESTS_MAX: Final = 64
"""A request waits for those before it: with more of them the last would wait for hours."""
RETRY_AFTER_MS: Final = 10_000


class _ErasureRequest:
    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.last: EraseStep | None = None
        self.ended = False
        self.error: Exception | None = None
        self.changed = asyncio.Event()

    def end(self, error: Exception | None) -> None:
        if error is None and self.topic.deleted:
            error = TopicNotFound(f"topic {self.topic.name} was deleted", topic=self.topic.name)
        self.ended, self.error = True, error
        self.changed.set()


class ErasureQueue:
    """The order of a store's erasures."""

    def __init__(
        self, erase_job: EraseJob, *, table: TopicTable, garbage: Garbage, clock: Clock, erase_within_ms: int
    ) -> None:
        self._erase_job = erase_job
        self._table = table
        self._garbage = garbage
        self._clock = clock
        self._half_ms = erase_within_ms // 2
        self._next_check_s = clock.monotonic_s()
        self._requests: list[_ErasureRequest] = []
        self._due_topics: Sequence[Topic] = ()
        self._due_gone: Sequence[ErasingEntry] = ()
        self._steps: AsyncGenerator[EraseStep, None] | None = None
        self._current: _ErasureRequest | None = None
        self.on_request: Callable[[], None] = noop
        """Called at each request."""
        self.stage = Stage.ERASE
        """Stage of the next step."""
        self.has_more = False
        """True = the next step can be done at once."""

    async def erase(self, topic: Topic) -> AsyncGenerator[EraseProgress, None]:
        """Erase a topic's records that were deleted before the call; only the last progress has `erased` set.

        Raises:
            Throttled: `REQUESTS_MAX` requests wait already. NotReady: the store stops. All errors of `EraseJob.erase`.
        """
        if len(self._requests) >= REQUESTS_MAX:
            raise Throttled(f"{REQUESTS_MAX} erasures are waiting, the maximum", retryAfterMs=RETRY_AFTER_MS)
        request = _ErasureRequest(topic)
        self._requests.append(request)
        self.on_request()
        try:
            while not request.ended:
                await request.changed.wait()
                request.changed.clear()
                if request.last is not None and not request.ended:
                    yield EraseProgress(request.last.done_bytes, request.last.total_bytes)
            if request.error is not None:
                raise request.error
            done_bytes, total_bytes = (request.last.done_bytes, request.last.total_bytes) if request.last else (0, 0)
            yield EraseProgress(max(done_bytes, total_bytes), total_bytes, erased=True)
        finally:
            if request in self._requests:
                self._requests.remove(request)

    def find_due(self) -> None:
        """Collect due topics, at most once in `DUE_CHECK_S`."""
        now_s = self._clock.monotonic_s()
        if now_s < self._next_check_s or self._due_topics or self._due_gone:
            return
        self._next_check_s = now_s + DUE_CHECK_S
        half_over_ms = self._clock.now_ms() + self._half_ms
        due = [topic for topic in self._table.all() if 0 < topic.erase_due_ms <= half_over_ms]
        self._due_topics = sorted(due, key=_due_ms)[:DUE_MAX]
        self._due_gone = [entry for entry in self._garbage.erasing.values() if entry.due_ms <= half_over_ms][:DUE_MAX]

    @property
    def are_due(self) -> bool:
        """True = a step is left to do."""
        return bool(self._steps is not None or self._requests or self._due_topics or self._due_gone)

    async def step(self) -> None:
        """Do the next step of the running erasure, or begin the next one.

        Raises:
            all errors of `EraseJob.erase`, which end the erasure.
        """
        steps = self._steps = self._steps or self._begin()
        try:
            step = await anext(steps, None)
        except Exception as error:
            self._end(error)
            raise
        if step is None:
            self._end(None)
            return
        self.stage, self.has_more = step.stage, not step.waits
        if self._current is not None:
            self._current.last = step
            self._current.changed.set()

    async def refuse(self, reason: str) -> None:
        """End all erasures with ReadOnly: the shard is read-only, for `reason`."""
        await self._stop(read_only(reason))

    async def close(self) -> None:
        """End the running step, and all requests with NotReady: the store stops."""
        await self._stop(NotReady("the store is stopping"))

    def _begin(self) -> AsyncGenerator[EraseStep, None]:
        if self._requests:
            self._current = self._requests.pop(0)
            return self._erase_job.erase([self._current.topic], ())
        topics, gone, self._due_topics, self._due_gone = self._due_topics, self._due_gone, (), ()
        return self._erase_job.erase(topics, gone)

    def _end(self, error: Exception | None) -> None:
        current, self._current, self._steps = self._current, None, None
        self.stage, self.has_more = Stage.ERASE, bool(self._requests)
        if current is not None:
            current.end(error)

    async def _stop(self, error: Exception) -> None:
        if self._steps is not None:
            await self._steps.aclose()
            self._end(error)
        for request in self._requests:
            request.end(error)
        self._requests.clear()


def _due_ms(topic: Topic) -> int:
    return topic.erase_due_ms
