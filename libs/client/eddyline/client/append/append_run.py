"""Appends of one record each, in order, each once, over as many streams as it takes.

I1: every append carries the key `<run id>-<number>`, so that one whose outcome is unknown is repeated on the next
stream and stored once. I2: once something is stored, only the topic of that epoch is written to: a topic that was
re-created in between refuses.
I3: what is not acknowledged is at most `IN_FLIGHT_MAX` appends; answers are taken as they arrive.
Failure: an answer that a retry may mend is retried until nothing was acknowledged for `PATIENCE_S`; every other one,
and what the records' own iterator raises, ends the run behind everything that came before it. The counts are true at
all times.
Threading: one loop; `run` is called once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.client.append.gathered_call import IN_FLIGHT_MAX
from eddyline.client.transport.call import RETRY_CAP_S, RETRYABLE, retry_after_s
from eddyline.core.errors import Code, EddylineError
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import sleep

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from eddyline.client.append.append_stream import AppendStream
    from eddyline.client.append.gathered_call import Acknowledgement
    from eddyline.core.records.record import Record
    from eddyline.core.runtime.clock import Clock

    OpenStream = Callable[[int], AbstractAsyncContextManager[AppendStream]]

PATIENCE_S: Final = 30.0
"""A store is back within a second of its death; a quarter of the idempotency window, so that no key is forgotten."""
TOLD_FAILURES_MIN: Final = 2
"""A stream that died while nothing was sent costs one failure, which is not worth a callback."""

_REFUSALS: Final = frozenset(
    {Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.ALREADY_EXISTS, Code.FAILED_PRECONDITION, Code.ABORTED}
)
"""Answers after which nothing more of the stream is stored; after any other, what was in flight may be."""


class NumberedRecord(NamedTuple):
    """A record and its number in the run: its place in the input, from 1, rising."""

    number: int
    record: Record


@dataclass(slots=True)
class _Pending:
    number: int
    record: Record
    acknowledgement: Acknowledgement | None = None
    sent: bool = False
    outcome_unknown: bool = False


class AppendRun:
    """One run. `Client.append_run` makes it."""

    def __init__(
        self,
        open_stream: OpenStream,
        *,
        run_id: str,
        clock: Clock,
        random_source: random.Random,
        on_away: Callable[[EddylineError], None],
        on_back: Callable[[], None],
    ) -> None:
        self.run_id = run_id
        self.acknowledged = 0
        """Appends known to be stored."""
        self.acknowledged_number = 0
        """Number of the newest of them; all before it are stored too."""
        self.first_seq = 0
        self.last_seq = 0
        self._open_stream = open_stream
        self._clock = clock
        self._backoff = Backoff(random_source, cap_s=RETRY_CAP_S)
        self._on_away = on_away
        self._on_back = on_back
        self._input: asyncio.Queue[NumberedRecord | None] = asyncio.Queue(IN_FLIGHT_MAX)
        self._input_error: Exception | None = None
        self._input_over = False
        self._pending: deque[_Pending] = deque()
        self._epoch = 0
        self._give_up_s: float | None = None
        self._away = False

    @property
    def unknown_count(self) -> int:
        """Appends that were sent and may be stored, without an answer so far."""
        return sum(1 for item in self._pending if item.sent)

    @property
    def next_number(self) -> int:
        """Number of the oldest append that is not acknowledged; 0 = none is under way."""
        return self._pending[0].number if self._pending else 0

    async def run(self, records: AsyncGenerator[NumberedRecord, None]) -> None:
        """Append all of `records`; returns when everything is acknowledged.

        Raises:
            EddylineError: a refusal, or what still failed at the end of its patience. Errors of `records`.
        """
        failure: EddylineError | None = None
        async with asyncio.TaskGroup() as group:
            feeding = group.create_task(self._feed(records))
            try:
                await self._append_all()
            except EddylineError as error:
                # Past the group, so that it is not wrapped into a group of errors.
                failure = error
            feeding.cancel()
        if failure is not None:
            raise failure
        if self._input_error is not None:
            raise self._input_error

    async def _feed(self, records: AsyncGenerator[NumberedRecord, None]) -> None:
        try:
            async with aclosing(records):
                async for record in records:
                    await self._input.put(record)
        except Exception as error:
            # This task's root: `run` raises it behind everything that came before it.
            self._input_error = error
        await self._input.put(None)

    async def _append_all(self) -> None:
        while self._pending or not self._input_over:
            if not self._pending and await self._take() is None:
                return
            try:
                await self._one_stream()
            except EddylineError as error:
                self._settle()
                if self._pending:
                    await self._before_retry(error)

    async def _take(self) -> _Pending | None:
        taken = await self._input.get()
        if taken is None:
            self._input_over = True
            return None
        item = _Pending(taken.number, taken.record)
        self._pending.append(item)
        return item

    async def _one_stream(self) -> None:
        async with self._open_stream(self._epoch) as stream:
            failure: BaseException | None = None
            try:
                async with asyncio.TaskGroup() as group:
                    sent: asyncio.Queue[_Pending | None] = asyncio.Queue(IN_FLIGHT_MAX)
                    group.create_task(self._collect(sent))
                    for item in tuple(self._pending):
                        await self._send(stream, item, sent)
                    while not self._input_over:
                        fresh = await self._take()
                        if fresh is not None:
                            await self._send(stream, fresh, sent)
                    await sent.put(None)
            except* EddylineError as failures:
                failure = failures
            while isinstance(failure, BaseExceptionGroup):
                failure = failure.exceptions[0]
            if failure is not None:
                raise failure

    async def _send(self, stream: AppendStream, item: _Pending, sent: asyncio.Queue[_Pending | None]) -> None:
        item.sent = True
        key = f"{self.run_id}-{item.number}"
        item.acknowledgement = await stream.append([item.record], idempotency_key=key)
        await sent.put(item)

    async def _collect(self, sent: asyncio.Queue[_Pending | None]) -> None:
        while (item := await sent.get()) is not None:
            assert item.acknowledgement is not None
            await item.acknowledgement
            self._settle()

    def _settle(self) -> None:
        """Take the answers that have come, in order."""
        while self._pending:
            item = self._pending[0]
            result = item.acknowledgement.result if item.acknowledgement is not None else None
            if result is None:
                return
            self._pending.popleft()
            self.acknowledged += 1
            self.acknowledged_number = item.number
            self.first_seq = self.first_seq or result.first_seq
            self.last_seq = max(self.last_seq, result.last_seq)
            self._epoch = result.epoch
            self._give_up_s = None
            self._backoff.reset()
            if self._away:
                self._away = False
                self._on_back()

    async def _before_retry(self, error: EddylineError) -> None:
        """Wait for the next try.

        Raises:
            EddylineError: there is none.
        """
        for item in self._pending:
            item.outcome_unknown |= item.sent and error.code not in _REFUSALS
            item.sent = item.outcome_unknown
            item.acknowledgement = None
        now_s = self._clock.monotonic_s()
        if self._give_up_s is None:
            self._give_up_s = now_s + PATIENCE_S
        delay_s = self._backoff.next_delay_s(minimum_s=retry_after_s(error))
        if error.code not in RETRYABLE or now_s + delay_s > self._give_up_s:
            raise error
        if self._backoff.failures >= TOLD_FAILURES_MIN and not self._away:
            self._away = True
            self._on_away(error)
        await sleep(self._clock, delay_s)
