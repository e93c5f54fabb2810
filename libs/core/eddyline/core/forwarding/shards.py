"""Forwarder to the stores of a cluster: passes a call on as bytes, once, with its deadline and its caller.

Forwarded with the call: the caller's deadline; this role's key or certificate and the principal it acts for
(`eddyline.core.auth.caller_channel`); the cluster's id and the trace if the caller sent them; and the mark of a
forwarded call, which carries this cluster's id, so that a store of another cluster refuses it. Answers are not parsed.
A store's status, message and details are returned unchanged; a store that does not answer is STORE_UNREACHABLE with the
shard's index.
I1: a stream holds one message each way in addition to gRPC's windows (512 KiB a stream). I2: when the caller leaves,
    its call at the owner ends; when the owner ends it, so does the caller's. I3: no call is retried here.
I4: when the role stops, its streams end with NOT_READY; unary calls are completed. I5: each forwarded call is counted
    once, when it ends.
Failure: a refused connection is UNAVAILABLE at once, a connection that is not accepted after 2 s
(`eddyline.core.transport.channel`); keepalive detects a store that hangs, within 20 s. A store that refuses this role's
own key is STORE_UNREACHABLE too: the caller's key was accepted.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import grpc

from eddyline.core.auth.grant import on_own_behalf
from eddyline.core.errors import EddylineError, NotReady, SourceNotFound, StoreUnreachable, Unauthenticated
from eddyline.core.forwarding.routes import GET_SOURCE
from eddyline.core.forwarding.stats import ForwardedCalls, Outcome, outcome_of
from eddyline.core.runtime.tasks import run_with
from eddyline.core.telemetry.trace_context import TRACEPARENT
from eddyline.core.transport.cluster_check import CLUSTER_ID_KEY, forwarded_metadata
from eddyline.core.transport.status import passed_on
from eddyline.core.transport.stream_write import message_writer
from eddyline.v1 import apply_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
    from typing import Protocol

    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.core.auth.role import RoleAccess
    from eddyline.core.runtime.settings import CommonSettings

    class ForwardedCall(Protocol):
        """The call that is forwarded."""

        def time_remaining(self) -> float | None: ...

        def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None: ...

        def set_trailing_metadata(self, metadata: tuple[tuple[str, str | bytes], ...]) -> None: ...

        async def write(self, message: bytes) -> None: ...


T = TypeVar("T")

_PASSED_ON: Final = (CLUSTER_ID_KEY, TRACEPARENT)
FIND_S: Final = 5.0
"""Default in gRPC: none. Deadline for each store's answer whether it has a source: a look-up in memory."""


class ShardForwarder:
    """Stores by index; `addresses` are resolved when a shard is first called. Closed after its server has stopped."""

    def __init__(self, addresses: Sequence[str], *, caller: CallerAccess, cluster_id: str) -> None:
        self._addresses = addresses
        self._caller = caller
        self._mark = forwarded_metadata(cluster_id)
        self._channels: dict[tuple[int, bool], grpc.aio.Channel] = {}
        self._streams: set[grpc.aio.Call] = set()
        self._is_stopping = False
        self.forwarded = ForwardedCalls(len(addresses))
        """Calls forwarded so far."""

    async def __aenter__(self) -> ShardForwarder:
        return self

    async def __aexit__(self, *raised: object) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    def end_streams(self) -> None:
        """End all streams, because the role stops: they have no end of their own."""
        self._is_stopping = True
        for call in self._streams:
            call.cancel()

    @property
    def count(self) -> int:
        """Number of shards."""
        return len(self._addresses)

    async def unary(self, shard: int, method: str, message: bytes, context: ForwardedCall) -> bytes:
        """Forward a call with one answer.

        Raises:
            EddylineError: the store's error; StoreUnreachable, Deadline.
        """
        calls: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(shard).unary_unary(method)
        call = calls(message, timeout=context.time_remaining(), metadata=self._metadata(context))
        with self._counted(shard):
            try:
                answer = await call
            except grpc.aio.AioRpcError as error:
                raise self._translated(shard, error) from None
        if trailing := tuple(await call.trailing_metadata() or ()):
            context.set_trailing_metadata(trailing)
        return answer

    async def stream(
        self, shard: int, method: str, message: bytes, context: ForwardedCall
    ) -> AsyncGenerator[bytes, None]:
        """Forward a call with many answers.

        Raises:
            EddylineError: as `unary`.
        """
        calls: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel(shard, bulk=True).unary_stream(method)
        call = calls(message, timeout=context.time_remaining(), metadata=self._metadata(context))
        with self._counted(shard), self._streaming(shard, call):
            async for answer in call:
                yield answer

    async def duplex(self, shard: int, method: str, messages: AsyncIterator[bytes], context: ForwardedCall) -> None:
        """Forward a call with many messages both ways, until both directions have ended.

        A message that is refused here ends the stream at that point: the messages before it are answered first.

        Raises:
            EddylineError: as `unary`, or the error of `messages`.
        """
        calls: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel(shard, bulk=True).stream_stream(method)
        call = calls(timeout=context.time_remaining(), metadata=self._metadata(context))
        refused: list[EddylineError] = []
        with self._counted(shard), self._streaming(shard, call):
            await run_with(_answer(call, context), background=_send(call, messages, refused))
        if refused:
            raise refused[0]

    async def each(self, method: str, messages: dict[int, bytes], context: ForwardedCall) -> dict[int, bytes]:
        """Call several shards at once, each with its message; return their answers. One failure fails the whole call.

        Raises:
            EddylineError: as `unary`.
        """
        calls = {shard: self.unary(shard, method, message, context) for shard, message in messages.items()}
        return dict(zip(calls, await _all(list(calls.values())), strict=True))

    async def find_source(self, name: str, *, but: int) -> int | None:
        """Return the shard, other than `but`, that has a source; None = all deny it.

        Raises:
            EddylineError: a shard failed to answer, and no other has the source.
        """
        message = apply_pb2.ApplyServiceGetSourceRequest(source=name).SerializeToString()
        others = [shard for shard in range(self.count) if shard != but]
        with on_own_behalf():
            answers = await _all([self._has_source(shard, message) for shard in others])
        for shard, has in zip(others, answers, strict=True):
            if has is True:
                return shard
        for error in answers:
            if isinstance(error, EddylineError):
                raise error
        return None

    async def _has_source(self, shard: int, message: bytes) -> bool | EddylineError:
        calls: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(shard).unary_unary(GET_SOURCE)
        try:
            await calls(message, timeout=FIND_S, metadata=self._mark)
        except grpc.aio.AioRpcError as error:
            failure = self._translated(shard, error)
            return False if isinstance(failure, SourceNotFound) else failure
        return True

    @contextmanager
    def _streaming(self, shard: int, call: grpc.aio.Call) -> Iterator[None]:
        """Register a running stream until the context ends.

        Raises:
            EddylineError: the store's error; StoreUnreachable, Deadline; NotReady, if the role stops.
        """
        if self._is_stopping:
            call.cancel()
        self._streams.add(call)
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self._translated(shard, error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_stopping and (task is None or not task.cancelling()):
                raise NotReady("the role is stopping") from None
            raise
        finally:
            self._streams.discard(call)
            call.cancel()

    @contextmanager
    def _counted(self, shard: int) -> Iterator[None]:
        """Count a call once, when it ends, by the error it raises."""
        outcome = Outcome.LEFT
        try:
            yield
            outcome = Outcome.OK
        except EddylineError as error:
            outcome = outcome_of(error)
            raise
        finally:
            self.forwarded.ended(shard, outcome)

    def _channel(self, shard: int, *, bulk: bool = False) -> grpc.aio.Channel:
        """Streams use a connection of their own, so that they do not delay unary answers."""
        channel = self._channels.get((shard, bulk))
        if channel is None:
            channel = self._caller.open_channel(self._addresses[shard], own_connection=bulk)
            self._channels[shard, bulk] = channel
        return channel

    def _metadata(self, context: ForwardedCall) -> tuple[tuple[str, str], ...]:
        received = context.invocation_metadata() or ()
        own = tuple((key, value) for key, value in received if key in _PASSED_ON and isinstance(value, str))
        return (*self._mark, *own)

    def _translated(self, shard: int, error: grpc.aio.AioRpcError) -> EddylineError:
        failure = passed_on(error, unreachable=StoreUnreachable)
        if failure.came_as is None and isinstance(failure, StoreUnreachable):
            message = f"store shard {shard} at {self._addresses[shard]} cannot be reached: {failure.message}"
            return StoreUnreachable(message, shardIndex=shard)
        if isinstance(failure, Unauthenticated):
            message = f"store shard {shard} at {self._addresses[shard]} refused this role's key: {failure.message}"
            return StoreUnreachable(message, shardIndex=shard)
        return failure


def configured_shards(common: CommonSettings, access: RoleAccess) -> ShardForwarder:
    """Return the forwarder to the stores of the settings."""
    return ShardForwarder(common.store_addresses, caller=access.caller, cluster_id=common.cluster_id)


async def _send(
    call: grpc.aio.StreamStreamCall[bytes, bytes], messages: AsyncIterator[bytes], refused: list[EddylineError]
) -> None:
    write = message_writer(call)
    try:
        await call.wait_for_connection()
        async for message in messages:
            await write(message)
    except EddylineError as error:
        refused.append(error)
    except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
        return  # the call is over: the reader of its answers gets its status
    await call.done_writing()


async def _answer(call: grpc.aio.StreamStreamCall[bytes, bytes], context: ForwardedCall) -> None:
    async for answer in call:
        await context.write(answer)


async def _all(coroutines: Sequence[Coroutine[object, object, T]]) -> list[T]:
    """Return all results; the first failure cancels the others."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one) for one in coroutines]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in running]
