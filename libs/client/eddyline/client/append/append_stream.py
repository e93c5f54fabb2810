"""Appends to one topic, many in flight: one AppendStream call, answers in order.

No task of its own: a caller that awaits an acknowledgement reads answers until its own has come, one reader at a time.
An append beyond `IN_FLIGHT_MAX` first waits for the oldest one's answer, so memory is bounded by what the server reads
ahead. The first failure ends the stream: what was answered before it stands, every later append raises that failure.
After `UNAVAILABLE` the outcome of those in flight is unknown; an idempotency key settles it on a new stream. A wait for
an answer that is cancelled cancels the call with it, as gRPC does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import grpc

from eddyline.client.append.columns import fill_records
from eddyline.client.transport.call import check_message, domain_errors
from eddyline.core.errors import EddylineError, NotReady
from eddyline.core.store_link.protocol import AppendResult
from eddyline.v1 import log_pb2

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from eddyline.core.records.record import Record

    AppendCall = grpc.aio.StreamStreamCall[log_pb2.AppendStreamRequest, log_pb2.AppendStreamResponse]

IN_FLIGHT_MAX: Final = 64
"""The server reads 16 appends ahead of its answers; four times that keeps the wire full over a slow link."""


class Acknowledgement:
    """An append under way: awaiting it gives its `AppendResult`, or raises what the stream failed with."""

    def __init__(self, stream: AppendStream) -> None:
        self._stream = stream
        self.result: AppendResult | None = None
        self.error: EddylineError | None = None

    @property
    def done(self) -> bool:
        """True = the outcome is known."""
        return self.result is not None or self.error is not None

    def __await__(self) -> Generator[None, None, AppendResult]:
        return self._outcome().__await__()

    async def _outcome(self) -> AppendResult:
        await self._stream.read_until(self)
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


class AppendStream:
    """One open stream; `Client.append_stream` opens and closes it. Appends come from one task."""

    def __init__(self, call: AppendCall) -> None:
        self._call = call
        self._waiting: deque[Acknowledgement] = deque()
        self._reading = asyncio.Lock()
        self._failure: EddylineError | None = None
        self.acknowledged = 0
        """Appends whose success is known; all of them came before any other."""
        self.first_seq = 0
        self.last_seq = 0

    async def start(self, start: log_pb2.AppendStart) -> None:
        """Send the first step. For the stream's opener."""
        try:
            with domain_errors():
                await self._call.write(log_pb2.AppendStreamRequest(start=start))
        except (EddylineError, asyncio.InvalidStateError):
            await self._read()
            raise self._failure or NotReady("the stream was ended by the server before it began") from None

    async def append(
        self, records: Sequence[Record], *, idempotency_key: str = "", expected_head_seq: int | None = None
    ) -> Acknowledgement:
        """Send one append; returns when it is on its way. Await what it returns for the outcome.

        Raises:
            EddylineError: the stream has failed before. BatchTooLarge: more than 64 MiB; the stream goes on.
        """
        if len(self._waiting) >= IN_FLIGHT_MAX:
            await self.read_until(self._waiting[0])
        if self._failure is not None:
            raise self._failure
        request = log_pb2.AppendStreamRequest(
            append=log_pb2.AppendBatch(idempotency_key=idempotency_key, expected_head_seq=expected_head_seq)
        )
        fill_records(request.append, records)
        check_message(request)
        acknowledgement = Acknowledgement(self)
        self._waiting.append(acknowledgement)
        try:
            with domain_errors():
                await self._call.write(request)
        except (EddylineError, asyncio.InvalidStateError):
            # The reason is behind the answers that came before it.
            await self.read_until(acknowledgement)
            if acknowledgement.error is not None:
                raise acknowledgement.error from None
        return acknowledgement

    async def flush(self) -> None:
        """Wait for the outcome of everything sent.

        Raises:
            EddylineError: what the stream failed with.
        """
        if self._waiting:
            await self._waiting[-1]
        if self._failure is not None:
            raise self._failure

    async def finish(self) -> None:
        """Flush, and end the call. For the stream's opener."""
        await self.flush()
        await self._call.done_writing()
        if await self._read() is not None:
            raise NotReady("the server answered an append that was not sent")

    async def read_until(self, acknowledgement: Acknowledgement) -> None:
        """Read answers until this append's is known."""
        async with self._reading:
            while not acknowledgement.done:
                answer = await self._read()
                if answer is None:
                    self._fail(self._failure or NotReady("the stream was ended by the server before its answers"))
                    return
                self._waiting.popleft().result = AppendResult(
                    answer.first_seq, answer.last_seq, answer.epoch, answer.ts_ms, answer.deduplicated
                )
                self.acknowledged += 1
                self.first_seq = self.first_seq or answer.first_seq
                self.last_seq = max(self.last_seq, answer.last_seq)

    async def _read(self) -> log_pb2.AppendStreamResponse | None:
        try:
            with domain_errors():
                answer = await self._call.read()
        except EddylineError as error:
            self._failure = error
            return None
        if answer is grpc.aio.EOF:
            return None
        # As above: EOF is out.
        return answer  # type: ignore[return-value]

    def _fail(self, error: EddylineError) -> None:
        self._failure = error
        while self._waiting:
            self._waiting.popleft().error = error
