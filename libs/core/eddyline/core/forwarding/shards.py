"""The stores of a cluster as who forwards calls sees them: a call is passed on as bytes, once, with its time and its caller.

What goes with it: the caller's deadline; this role's key or certificate and the principal it speaks for
(`eddyline.core.auth.caller_channel`); the cluster's id and the trace where the caller said one; and the mark of a forwarded
call, which carries the id of our cluster, so that a store of another one refuses it. Answers are not parsed. Whatever a
store says (status, message, details) goes on as it came; where it does not answer, STORE_UNREACHABLE with the shard's index.
I1: a stream holds one message each way beside what gRPC has in its windows (512 KiB a stream). I2: whoever calls goes, its
call at the owner ends; the owner ends it, and so does the caller's. I3: nothing is retried here.
I4: where the role stops its streams end with NOT_READY; calls of one answer come to their end. I5: each call that was passed
on is counted once, as it ends.
Failure: a store that is away is UNAVAILABLE at once, one that does not take the connection after 2 s
(`eddyline.core.transport.channel`); one that hangs when keepalive notices, within 20 s. One that refuses this role's own key
is STORE_UNREACHABLE too: the caller's was taken.
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
from eddyline.v1 import apply_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
    from typing import Protocol

    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.core.auth.role import RoleAccess
    from eddyline.core.runtime.settings import CommonSettings

    class Context(Protocol):
        """The call that is passed on."""

        def time_remaining(self) -> float | None: ...

        def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None: ...

        def set_trailing_metadata(self, metadata: tuple[tuple[str, str | bytes], ...]) -> None: ...

        async def write(self, message: bytes) -> None: ...


T = TypeVar("T")

_PASSED_ON: Final = (CLUSTER_ID_KEY, TRACEPARENT)
FIND_S: Final = 5.0
"""Elsewhere none. How long each store may take to say whether it has a source: it is a look-up in memory."""


class ShardForwarder:
    """Stores by index; `addresses` are looked at when a shard is first called. Left when its server has stopped."""

    def __init__(self, addresses: Sequence[str], *, caller: CallerAccess, cluster_id: str) -> None:
        self._addresses = addresses
        self._caller = caller
        self._mark = forwarded_metadata(cluster_id)
        self._channels: dict[tuple[int, bool], grpc.aio.Channel] = {}
        self._streams: set[grpc.aio.Call] = set()
        self._is_stopping = False
        self.forwarded = ForwardedCalls(len(addresses))
        """What was passed on so far."""

    async def __aenter__(self) -> ShardForwarder:
        return self

    async def __aexit__(self, *raised: object) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    def end_streams(self) -> None:
        """The role stops: end what would go on for ever."""
        self._is_stopping = True
        for call in self._streams:
            call.cancel()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._addresses)

    async def unary(self, shard: int, method: str, message: bytes, context: Context) -> bytes:
        """Pass a call of one answer on.

        Raises:
            EddylineError: what the store said; StoreUnreachable, Deadline.
        """
        calls: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(shard).unary_unary(method)
        call = calls(message, timeout=context.time_remaining(), metadata=self._metadata(context))
        with self._counted(shard):
            try:
                answer = await call
            except grpc.aio.AioRpcError as error:
                raise self._failed(shard, error) from None
        if trailing := tuple(await call.trailing_metadata() or ()):
            context.set_trailing_metadata(trailing)
        return answer

    async def stream(self, shard: int, method: str, message: bytes, context: Context) -> AsyncGenerator[bytes, None]:
        """Pass a call of many answers on.

        Raises:
            EddylineError: as `unary`.
        """
        calls: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel(shard, bulk=True).unary_stream(method)
        call = calls(message, timeout=context.time_remaining(), metadata=self._metadata(context))
        with self._counted(shard), self._streaming(shard, call):
            async for answer in call:
                yield answer

    async def duplex(self, shard: int, method: str, messages: AsyncIterator[bytes], context: Context) -> None:
        """Pass a call of many messages both ways on, until both have ended. A message that was refused here ends the
        stream where it stood: what came before it is answered first.

        Raises:
            EddylineError: as `unary`, or what `messages` raised.
        """
        calls: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel(shard, bulk=True).stream_stream(method)
        call = calls(timeout=context.time_remaining(), metadata=self._metadata(context))
        refused: list[EddylineError] = []
        with self._counted(shard), self._streaming(shard, call):
            await run_with(_answer(call, context), background=_send(call, messages, refused))
        if refused:
            raise refused[0]

    async def each(self, method: str, messages: dict[int, bytes], context: Context) -> dict[int, bytes]:
        """Ask several shards at once, each with its message; their answers. One that fails fails all.

        Raises:
            EddylineError: as `unary`.
        """
        asked = {shard: self.unary(shard, method, message, context) for shard, message in messages.items()}
        return dict(zip(asked, await _all(list(asked.values())), strict=True))

    async def find_source(self, name: str, *, but: int) -> int | None:
        """The shard, any `but` this one, that has a source; None = all say they have not.

        Raises:
            EddylineError: one could not say, and no other has it.
        """
        message = apply_pb2.ApplyServiceGetSourceRequest(source=name).SerializeToString()
        others = [shard for shard in range(self.count) if shard != but]
        with on_own_behalf():
            said = await _all([self._has_source(shard, message) for shard in others])
        for shard, has in zip(others, said, strict=True):
            if has is True:
                return shard
        for error in said:
            if isinstance(error, EddylineError):
                raise error
        return None

    async def _has_source(self, shard: int, message: bytes) -> bool | EddylineError:
        calls: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel(shard).unary_unary(GET_SOURCE)
        try:
            await calls(message, timeout=FIND_S, metadata=self._mark)
        except grpc.aio.AioRpcError as error:
            found = self._failed(shard, error)
            return False if isinstance(found, SourceNotFound) else found
        return True

    @contextmanager
    def _streaming(self, shard: int, call: grpc.aio.Call) -> Iterator[None]:
        """A stream that is under way, until it is left.

        Raises:
            EddylineError: what the store said; StoreUnreachable, Deadline; NotReady, where the role stops.
        """
        if self._is_stopping:
            call.cancel()
        self._streams.add(call)
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self._failed(shard, error) from None
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
        """A call that is under way: as it is left it is counted, by what it raises."""
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
        """Streams go by a connection of their own, so that they do not delay single answers."""
        channel = self._channels.get((shard, bulk))
        if channel is None:
            channel = self._caller.open_channel(self._addresses[shard], own_connection=bulk)
            self._channels[shard, bulk] = channel
        return channel

    def _metadata(self, context: Context) -> tuple[tuple[str, str], ...]:
        said = context.invocation_metadata() or ()
        own = tuple((key, value) for key, value in said if key in _PASSED_ON and isinstance(value, str))
        return (*self._mark, *own)

    def _failed(self, shard: int, error: grpc.aio.AioRpcError) -> EddylineError:
        found = passed_on(error, unreachable=StoreUnreachable)
        if found.came_as is None and isinstance(found, StoreUnreachable):
            message = f"store shard {shard} at {self._addresses[shard]} cannot be reached: {found.message}"
            return StoreUnreachable(message, shardIndex=shard)
        if isinstance(found, Unauthenticated):
            message = (
                f"store shard {shard} at {self._addresses[shard]} does not know this role's own key: {found.message}"
            )
            return StoreUnreachable(message, shardIndex=shard)
        return found


def configured_shards(common: CommonSettings, access: RoleAccess) -> ShardForwarder:
    """The stores of the settings, as a role reaches them."""
    return ShardForwarder(common.store_addresses, caller=access.caller, cluster_id=common.cluster_id)


async def _send(
    call: grpc.aio.StreamStreamCall[bytes, bytes], messages: AsyncIterator[bytes], refused: list[EddylineError]
) -> None:
    # Not `call.write`: where the owner has ended the call meanwhile that makes INTERNAL of it, whatever the owner said, and
    # drops the answers that are on their way.
    write = call._cython_call.send_serialized_message  # type: ignore[attr-defined]
    try:
        await call.wait_for_connection()
        async for message in messages:
            await write(message)
    except EddylineError as error:
        refused.append(error)
    except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
        return  # it is over: what reads its answers learns how
    await call.done_writing()


async def _answer(call: grpc.aio.StreamStreamCall[bytes, bytes], context: Context) -> None:
    async for answer in call:
        await context.write(answer)


async def _all(asked: Sequence[Coroutine[object, object, T]]) -> list[T]:
    """What all give; the first that fails ends the others."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one) for one in asked]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in running]
