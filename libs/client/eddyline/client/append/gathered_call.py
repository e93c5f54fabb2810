"""One AppendStream call: appends that wait go in one message, and one answer has the outcomes of all of them.

There is no timer: a message takes what came while the last ones were on their way. At most two messages are without their
answer, so that the store stages one while the disk writes the other. Appends of 32 KiB and more go alone. The server's first
answer says how many appends a message may have; an older server does not say it, and gets each append alone.
I1: outcomes are set in the order of the appends, each once. I2: an append is sent at most once; one that was not sent when
the call ended is still `unsent`. I3: at most `IN_FLIGHT_MAX` appends and about `IN_FLIGHT_BYTES_MAX` bytes are in flight.
Failure: when the call ends, each append without an outcome gets the error that the call ended with. Whether it is stored is
then unknown, unless the server refused it. A task that stops waiting for its append does not end the call; if the append was
not sent, `withdraw` takes it back.
Threading: one event loop. `write_all` and `read_all` run as tasks of the caller that opened the call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import grpc

from eddyline.client.transport.call import domain_errors
from eddyline.core.codec.row_split import STEP_BYTES_MAX
from eddyline.core.errors import EddylineError, NotReady
from eddyline.core.runtime.tasks import run_with
from eddyline.core.store_link.append_steps import (
    STEP_APPENDS_MAX,
    STEP_ENVELOPE_BYTES,
    outcomes_from_pb,
    step_of_one,
    step_of_several,
)
from eddyline.core.transport.stream_write import message_writer
from eddyline.v1 import log_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from eddyline.core.store_link.protocol import AppendResult

    Metadata = tuple[tuple[str, str], ...]
    AppendCall = grpc.aio.StreamStreamCall[bytes, log_pb2.AppendStreamResponse]

IN_FLIGHT_MAX: Final = 512
"""Two full messages of `STEP_APPENDS_MAX`: one at the store, one that is put together."""
IN_FLIGHT_BYTES_MAX: Final = 32 << 20
"""Twice what the server reads ahead of its answers."""
ALONE_BYTES_MIN: Final = 32 << 10
"""An append from this size on is not put into a message with others: the store does not join it with them either."""
MESSAGES_MAX: Final = 2
"""Messages without an answer while others gather."""
SINGLE_MESSAGES_MAX: Final = 64
"""The same of messages of one append, to a server that takes no others: four times what it reads ahead."""

assert IN_FLIGHT_MAX >= MESSAGES_MAX * STEP_APPENDS_MAX
assert SINGLE_MESSAGES_MAX <= IN_FLIGHT_MAX


def open_append_call(channel: grpc.aio.Channel, metadata: Metadata = ()) -> AppendCall:
    """Open an AppendStream call whose steps are serialized already."""
    stream: grpc.aio.StreamStreamMultiCallable[bytes, log_pb2.AppendStreamResponse] = channel.stream_stream(
        "/eddyline.v1.LogService/AppendStream", response_deserializer=log_pb2.AppendStreamResponse.FromString
    )
    return stream(metadata=metadata)


class Acknowledgement:
    """An append under way: awaiting it gives its `AppendResult`, or raises what the stream failed with."""

    __slots__ = ("_settled", "append", "error", "result")

    def __init__(self, append: bytes) -> None:
        self.append = append
        """The append as it is sent; b"" = it was sent."""
        self.result: AppendResult | None = None
        self.error: EddylineError | None = None
        self._settled: asyncio.Event | None = None

    @property
    def unsent(self) -> bool:
        """True = the append was not sent: nothing of it is stored, nor will be if the outcome is an error."""
        return bool(self.append)

    @property
    def done(self) -> bool:
        """True = the outcome is known."""
        return self.result is not None or self.error is not None

    def settle(self, outcome: AppendResult | EddylineError) -> None:
        """Set the outcome, which wakes those that await it."""
        if isinstance(outcome, EddylineError):
            self.error = outcome
        else:
            self.result = outcome
        if self._settled is not None:
            self._settled.set()

    def __await__(self) -> Generator[None, None, AppendResult]:
        return self._outcome().__await__()

    async def _outcome(self) -> AppendResult:
        if not self.done:
            if self._settled is None:
                self._settled = asyncio.Event()
            await self._settled.wait()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


class GatheredCall:
    """One call; see the module."""

    def __init__(self, call: AppendCall, *, on_outcome: Callable[[AppendResult], None], independent: bool) -> None:
        """Take a call that was just opened. `on_outcome` is called with each result, in order."""
        self._call = call
        self._write = message_writer(call)
        self._on_outcome = on_outcome
        self._independent = independent
        self._waiting: deque[Acknowledgement] = deque()
        self._waiting_bytes = 0
        self._sent: deque[list[Acknowledgement]] = deque()
        self._sent_appends = 0
        self._sent_bytes: deque[int] = deque()
        self._appends_max: int | None = None
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended = asyncio.Event()
        self.failure: EddylineError | None = None
        """What the call ended with; None = it goes on."""

    @property
    def takes_several(self) -> bool | None:
        """True = the server takes several appends in a message, and answers each; None = not known yet."""
        return None if self._appends_max is None else self._appends_max > 0

    @property
    def in_flight(self) -> int:
        """Appends without an outcome."""
        return self._sent_appends + len(self._waiting)

    async def start(self, start: log_pb2.AppendStart) -> None:
        """Send the first step.

        Raises:
            EddylineError: what the server refused the call with.
        """
        start.independent = self._independent
        try:
            with domain_errors():
                await self._call.wait_for_connection()
                await self._write(log_pb2.AppendStreamRequest(start=start).SerializeToString())
        except (EddylineError, grpc.aio.InternalError, asyncio.InvalidStateError):
            await self._read()
            raise self.failure or NotReady("the stream was ended by the server before it began") from None

    async def run(self, start: log_pb2.AppendStart) -> None:
        """Run the call from its first step to its end. Its errors are those of its appends."""
        try:
            await self.start(start)
            await run_with(self.read_all(), background=self.write_all())
        except EddylineError as error:
            self.failure = error
        finally:
            self._end()
            self.cancel()

    def cancel(self) -> None:
        """End the call now."""
        self._call.cancel()

    async def put(self, append: bytes) -> Acknowledgement:
        """Queue a serialized AppendBatch; waits while as much as it may be is under way.

        Raises:
            EddylineError: the call has ended.
        """
        while self.failure is None and self._is_full():
            self._room.clear()
            await self._room.wait()
        if self.failure is not None:
            raise self.failure
        acknowledgement = Acknowledgement(append)
        self._waiting.append(acknowledgement)
        self._waiting_bytes += len(append)
        self._idle.clear()
        self._wake.set()
        return acknowledgement

    def withdraw(self, acknowledgement: Acknowledgement) -> None:
        """Take back an append that was not sent; one that was is carried out."""
        if acknowledgement.unsent and acknowledgement in self._waiting:
            self._waiting.remove(acknowledgement)
            self._waiting_bytes -= len(acknowledgement.append)
            self._progressed()

    async def flush(self) -> None:
        """Wait until every append has its outcome, or the call has ended."""
        await self._idle.wait()

    async def finish(self) -> None:
        """Flush, and end the call.

        Raises:
            NotReady: the server answered an append that was not sent.
        """
        await self.flush()
        if self.failure is None:
            await self._call.done_writing()
            await self._ended.wait()

    async def write_all(self) -> None:
        """Send what waits, message by message."""
        while self.failure is None:
            if not self._may_write():
                self._wake.clear()
                await self._wake.wait()
                continue
            step = self._next_step()
            try:
                with domain_errors():
                    await self._write(step)
            except (EddylineError, grpc.aio.InternalError, asyncio.InvalidStateError):
                return  # `read_all` gets the reason, behind the answers that came before it

    async def read_all(self) -> None:
        """Give each append its outcome as the answers come."""
        try:
            while (answer := await self._read()) is not None:
                self._settle(answer)
        finally:
            self._end()

    def _is_full(self) -> bool:
        size = self._waiting_bytes + sum(self._sent_bytes)
        return self.in_flight >= IN_FLIGHT_MAX or (size >= IN_FLIGHT_BYTES_MAX and self.in_flight > 0)

    def _may_write(self) -> bool:
        if not self._waiting:
            return False
        if self._appends_max is None:
            # An older server ends the stream for one append's fault: then no other may be under way that it did not concern.
            return len(self._sent) < (1 if self._independent else MESSAGES_MAX)
        if not self._appends_max or self._waiting_bytes >= ALONE_BYTES_MIN:
            return len(self._sent) < SINGLE_MESSAGES_MAX
        return len(self._sent) < MESSAGES_MAX

    def _next_step(self) -> bytes:
        """Take the appends of the next message from those that wait."""
        taken = [self._waiting.popleft()]
        size = len(taken[0].append)
        if size < ALONE_BYTES_MIN:
            while self._waiting and len(taken) < (self._appends_max or 1):
                following = len(self._waiting[0].append)
                if (
                    following >= ALONE_BYTES_MIN
                    or size + following + STEP_ENVELOPE_BYTES * (len(taken) + 1) > STEP_BYTES_MAX
                ):
                    break
                size += following
                taken.append(self._waiting.popleft())
        appends = [acknowledgement.append for acknowledgement in taken]
        for acknowledgement in taken:
            acknowledgement.append = b""
        self._waiting_bytes -= size
        self._sent.append(taken)
        self._sent_appends += len(taken)
        self._sent_bytes.append(size)
        return step_of_one(appends[0]) if len(appends) == 1 else step_of_several(appends)

    def _settle(self, answer: log_pb2.AppendStreamResponse) -> None:
        """Give the appends of the oldest message their outcomes. Fewer than there are: the call's end has the others'."""
        if self._appends_max is None:
            self._appends_max = min(answer.appends_max, STEP_APPENDS_MAX)
        outcomes = outcomes_from_pb(answer)
        appends = self._sent[0] if self._sent else []
        if len(outcomes) > len(appends):
            self.failure = NotReady("the server answered an append that was not sent")
            self._call.cancel()
            return
        for acknowledgement, outcome in zip(appends, outcomes, strict=False):
            if not isinstance(outcome, EddylineError):
                self._on_outcome(outcome)
            acknowledgement.settle(outcome)
        self._sent_appends -= len(outcomes)
        if len(outcomes) == len(appends):
            self._sent.popleft()
            self._sent_bytes.popleft()
        else:
            del appends[: len(outcomes)]
        if self._independent and not self._appends_max:
            self.failure = NotReady("the server takes no independent appends")
            self.cancel()
        self._progressed()

    def _progressed(self) -> None:
        self._wake.set()
        self._room.set()
        if not self.in_flight:
            self._idle.set()

    async def _read(self) -> log_pb2.AppendStreamResponse | None:
        try:
            with domain_errors():
                answer = await self._call.read()
        except EddylineError as error:
            self.failure = self.failure or error
            return None
        if answer is grpc.aio.EOF:
            return None
        # As above: EOF is out.
        return answer  # type: ignore[return-value]

    def _end(self) -> None:
        failure = self.failure or NotReady("the stream was ended by the server before its answers")
        self.failure = failure
        unknown = [acknowledgement for message in self._sent for acknowledgement in message]
        self._sent.clear()
        self._sent_bytes.clear()
        self._sent_appends = 0
        for acknowledgement in unknown:
            acknowledgement.settle(failure)
        while self._waiting:
            self._waiting.popleft().settle(failure)
        self._waiting_bytes = 0
        self._progressed()
        self._ended.set()
