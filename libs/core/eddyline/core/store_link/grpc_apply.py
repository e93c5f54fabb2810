"""ApplyStream over gRPC: one open stream a source, each with one step in flight.

A step costs half of a call of its own. A stream opens with a source's first batch, and stays open until a step fails or
the source's lease is released; so there are at most as many as sources. The store applies a repeated step once, by its
position: so a step whose stream is found broken is left to a call of its own, and the caller sees no error.
Failure: the first failure of a step ends its stream with the store's error. A step that is not answered in time, or whose
caller is cancelled, ends it too: its outcome is unknown until a retry with the same position.
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
        self._open: dict[str, Call] = {}
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
        call = self._open.pop(step.source, None)
        is_new = call is None or call.done()
        if call is None or is_new:
            call = self._method(metadata=self._metadata)
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await _answer(call, step)
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
        if answer is None:
            return None
        self.close(step.source)  # another task may have opened one meanwhile
        self._open[step.source] = call
        return answer

    def close(self, source: str) -> None:
        """End the stream of a source, if it has one."""
        call = self._open.pop(source, None)
        if call is not None:
            call.cancel()


async def _answer(call: Call, step: apply_pb2.ApplyStreamRequest) -> apply_pb2.ApplyStreamResponse | None:
    """Send a step and return its answer; None = the stream ended without one. After a failure the stream is over."""
    try:
        await call.write(step)
        answer = await call.read()
    except asyncio.InvalidStateError:
        return None  # it ended before the step was sent
    except BaseException:
        call.cancel()
        raise
    return answer if isinstance(answer, apply_pb2.ApplyStreamResponse) else None
