"""ApplyStream over gRPC: one open stream a source, with its steps in flight in the order in which they were sent.

A step costs half of a call of its own. A stream opens with a source's first batch, and stays open until a step fails or
the source's lease is released; so there are at most as many as sources. The store applies a repeated step once, by its
position: so a step whose stream is found broken is left to a call of its own, and the caller sees no error. Callers bound
the steps in flight; the store answers them in order.
Failure: the first failure of a step ends its stream with the store's error, which the steps behind it get too. A step that
is not answered in time, or whose caller is cancelled, ends it too: its outcome is unknown until a retry with the same
position.
Threading: event loop only. The owner of the channel closes it, which ends all streams.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import grpc

from eddyline.core.errors import Deadline, PermissionDenied, StoreUnreachable, Unauthenticated
from eddyline.core.transport.status import unwrap
from eddyline.v1 import apply_pb2

if TYPE_CHECKING:
    Call = grpc.aio.StreamStreamCall[apply_pb2.ApplyStreamRequest, apply_pb2.ApplyStreamResponse]
    Method = grpc.aio.StreamStreamMultiCallable[apply_pb2.ApplyStreamRequest, apply_pb2.ApplyStreamResponse]


_OF_THE_STREAM: Final = (Unauthenticated, PermissionDenied)
"""Errors that end an open stream and need not be those of its step: the key with which it was opened was replaced."""


class GrpcApply:
    """The open streams of one store, by source."""

    def __init__(self, method: Method, metadata: tuple[tuple[str, str], ...], *, timeout_s: float) -> None:
        self._method = method
        self._metadata = metadata
        self._timeout_s = timeout_s
        self._open: dict[str, _StepStream] = {}
        self._is_served = True
        """False = the store is of an older version, without this call."""

    def __len__(self) -> int:
        return len(self._open)

    async def apply(self, step: apply_pb2.ApplyStreamRequest) -> apply_pb2.ApplyStreamResponse | None:
        """Apply one step; None = apply it by a call of its own.

        Raises:
            the store's error; Deadline, StoreUnreachable: the outcome is unknown.
        """
        if not self._is_served:
            return None
        stream = self._open.get(step.source)
        if stream is None or stream.call.done():
            stream = self._open[step.source] = _StepStream(self._method(metadata=self._metadata))
        is_new = not stream.was_answered
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await stream.answer(step)
        except TimeoutError as error:
            late = Deadline(f"the store did not answer within {self._timeout_s:g} s")
            late.unanswered = True
            raise late from error
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                self._is_served = False
                return None
            failure = unwrap(error, unreachable=StoreUnreachable)
            if not is_new and (failure.unanswered or isinstance(failure, _OF_THE_STREAM)):
                return None
            raise failure from error
        finally:
            if stream.is_over and self._open.get(step.source) is stream:
                del self._open[step.source]
        return answer

    def close(self, source: str) -> None:
        """End the stream of a source, if it has one."""
        stream = self._open.pop(source, None)
        if stream is not None:
            stream.end()


class _StepStream:
    """One open stream. Steps are written one after the other, and their answers read in the same order."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.was_answered = False
        self.is_over = False
        """True = a step failed, or the stream was closed: no other step may use it."""
        self._writes = asyncio.Lock()
        self._reads = asyncio.Lock()

    async def answer(self, step: apply_pb2.ApplyStreamRequest) -> apply_pb2.ApplyStreamResponse | None:
        """Send a step and return its answer; None = the stream ended without one. After a failure the stream is over."""
        try:
            async with self._writes:
                await self.call.write(step)
            async with self._reads:  # nothing comes between the two locks: both are in the order of the steps
                answer = await self.call.read()
        except asyncio.InvalidStateError:
            answer = None  # it ended before the step was sent
        except asyncio.CancelledError:
            task, was_over = asyncio.current_task(), self.is_over
            self.end()
            if was_over and task is not None and not task.cancelling():
                return None  # not this step was cancelled but the stream, for another one
            raise
        except grpc.aio.AioRpcError as error:
            self.end()
            if error.code() is grpc.StatusCode.INTERNAL:
                return None  # gRPC's own, for a write to a stream that ends, in place of the stream's error
            raise
        except BaseException:
            self.end()
            raise
        if not isinstance(answer, apply_pb2.ApplyStreamResponse):
            self.end()
            return None
        self.was_answered = True
        return answer

    def end(self) -> None:
        """Cancel the stream: steps in flight have an unknown outcome."""
        self.is_over = True
        self.call.cancel()
