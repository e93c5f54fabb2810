"""Forwarding by a role without shards to a scripted store: forwarded data, answers, and the end of a call."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # no py.typed in it

from eddyline.core.auth.caller_channel import CallerAccess, CallerKey
from eddyline.core.errors import Code, Deadline, EddylineError, NotReady, ServedElsewhere, StoreUnreachable, WrongShard
from eddyline.core.forwarding.interceptor import ForwardingInterceptor
from eddyline.core.forwarding.routes import (
    APPEND_CALLS,
    LOG_SERVICE,
    READ_CALLS,
    TOPIC_CALLS,
    TOPIC_SERVICE,
    methods_of,
)
from eddyline.core.forwarding.services import add_forwarded
from eddyline.core.forwarding.shards import ShardForwarder
from eddyline.core.forwarding.stats import Outcome
from eddyline.core.server.server import RawMethod, make_server
from eddyline.core.transport.channel import open_channel
from eddyline.core.transport.status import DETAILS_KEY, unwrap
from eddyline.v1 import log_pb2, topic_pb2
from tests.support.access import Keys, methods, outcome, secret_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from eddyline.core.auth.role import RoleAccess
    from eddyline.core.server.server import RoleServer

METHODS = methods_of(LOG_SERVICE, (*APPEND_CALLS, *READ_CALLS)) | methods_of(TOPIC_SERVICE, TOPIC_CALLS)
READ = f"/{LOG_SERVICE}/ReadRecords"
STREAM = f"/{LOG_SERVICE}/StreamRecords"
APPENDS = f"/{LOG_SERVICE}/AppendStream"
LIST = f"/{TOPIC_SERVICE}/ListTopics"
ASKED = log_pb2.ReadRecordsRequest(topic="t").SerializeToString()
WAIT_S = 90


class Owner:
    """A store that answers by the test's script, and records how its calls ended."""

    def __init__(self) -> None:
        self.metadata: dict[str, str | bytes] = {}
        self.remaining_s: float | None = None
        self.received: list[bytes] = []
        self.sent = 0
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        self.answer: Callable[[bytes, Any], Any] = self.echo

    async def echo(self, message: bytes, _context: Any) -> bytes:
        return message

    async def unary(self, message: bytes, context: Any) -> bytes:
        return bytes(await self._held(self.answer(message, context), context, message))

    async def stream(self, message: bytes, context: Any) -> None:
        await self._held(self._flood(context), context, message)

    async def duplex(self, messages: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata(())
        await self._held(self._echo_each(messages, context), context, b"")

    async def _held(self, work: Any, context: Any, message: bytes) -> Any:
        self.metadata = dict(context.invocation_metadata() or ())
        self.remaining_s = context.time_remaining()
        self.received.append(message)
        self.began.set()
        try:
            return await work
        finally:
            self.ended.set()

    async def _flood(self, context: Any) -> None:
        while True:
            await context.write(bytes(64 << 10))
            self.sent += 1

    async def _echo_each(self, messages: AsyncIterator[bytes], context: Any) -> None:
        async for message in messages:
            self.received.append(message)
            if message == FAIL:
                await context.abort(grpc.StatusCode.ABORTED, "enough")
            await context.write(message)


def as_it_is(message: bytes) -> bytes:
    return message


def as_bytes(message: object) -> bytes:
    assert isinstance(message, bytes)
    return message


FAIL = log_pb2.AppendStreamRequest(append=log_pb2.AppendBatch(idempotency_key="fail")).SerializeToString()
START = log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic="t")).SerializeToString()
APPEND = log_pb2.AppendStreamRequest(append=log_pb2.AppendBatch(idempotency_key="k")).SerializeToString()


class Calls:
    """Calls by their names, of bytes."""

    def __init__(self, channel: grpc.aio.Channel, shards: ShardForwarder) -> None:
        self.channel = channel
        self.shards = shards

    def unary(self, method: str) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
        calls: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(method)
        return calls

    def stream(self, method: str) -> grpc.aio.UnaryStreamMultiCallable[bytes, bytes]:
        calls: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self.channel.unary_stream(method)
        return calls

    def duplex(self, method: str) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
        calls: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(method)
        return calls


def owner_server(owner: Owner, access: RoleAccess | None) -> RoleServer:
    """Return a server without access control by default: the test inspects the credentials that the owner received."""
    server = make_server("127.0.0.1:0", cluster_id="c", access=access)
    calls = {
        "ReadRecords": RawMethod(owner.unary, as_it_is),
        "StreamRecords": RawMethod(owner.stream, as_it_is, response_stream=True),
        "AppendStream": RawMethod(owner.duplex, as_it_is, request_stream=True, response_stream=True),
    }
    server.add_raw_methods(LOG_SERVICE, calls)
    server.add_raw_methods(TOPIC_SERVICE, {"ListTopics": RawMethod(owner.unary, as_it_is)})
    return server


@asynccontextmanager
async def forwarding(
    owner: Owner, *, access: RoleAccess | None = None, behind_access: RoleAccess | None = None
) -> AsyncIterator[tuple[Calls, RoleServer]]:
    """Calls to a role that forwards them to one store, and that store's server."""
    behind = owner_server(owner, behind_access)
    address = await behind.start()
    caller = access.caller if access is not None else CallerAccess()
    shards = ShardForwarder((address,), caller=caller, cluster_id="c")
    front = make_server("127.0.0.1:0", interceptors=(ForwardingInterceptor(shards, methods=METHODS),), access=access)
    add_forwarded(front, METHODS, role="the front")
    try:
        async with shards, open_channel(await front.start(), own_connection=True) as channel:
            yield Calls(channel, shards), behind
            await front.stop(0)
    finally:
        await front.stop(0)
        await behind.stop(0)


async def failed(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


async def test_bytes_deadline_and_the_caller_s_cluster_go_with_a_call() -> None:
    owner = Owner()
    async with forwarding(owner) as (calls, _):
        call = calls.unary(READ)
        unknown = ASKED + b"\xf8\x3f\x01"  # a field of a later contract
        assert await call(unknown, timeout=30, metadata=(("eddyline-cluster-id", "c"), ("other", "x"))) == unknown
        assert owner.metadata["eddyline-forwarded"] == owner.metadata["eddyline-cluster-id"] == "c"
        assert "other" not in owner.metadata
        assert owner.remaining_s is not None
        assert 20 < owner.remaining_s < 31
        assert await call(ASKED) == ASKED
        assert "eddyline-cluster-id" not in owner.metadata
        assert owner.remaining_s is None


async def test_the_owner_s_answer_is_returned_unchanged() -> None:
    owner = Owner()
    info = error_details_pb2.ErrorInfo(reason="OF_A_LATER_VERSION", domain="eddyline", metadata={"a": "1", "b": "ü"})
    details = status_pb2.Status(code=9, message="why")
    for detail in (info, error_details_pb2.Help()):
        packed = any_pb2.Any()
        packed.Pack(detail)
        details.details.append(packed)
    trailing = ((DETAILS_KEY, details.SerializeToString()), ("more", "said"))

    async def refuse(_message: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "why", trailing)
        return b""

    async def answer(_message: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("more", "said"),))
        return b"answered"

    async with forwarding(owner) as (calls, _):
        owner.answer = refuse
        error = await failed(calls.unary(READ)(ASKED))
        assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "why")
        assert set(error.trailing_metadata()) >= set(trailing)
        owner.answer = answer
        call = calls.unary(READ)(ASKED)
        assert await call == b"answered"
        assert ("more", "said") in tuple(await call.trailing_metadata())


async def test_a_caller_that_leaves_or_times_out_ends_the_owner_s_call() -> None:
    async def wait(_message: bytes, _context: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    for is_stream in (False, True):
        owner = Owner()
        owner.answer = wait
        async with forwarding(owner) as (calls, _), asyncio.timeout(WAIT_S):
            call = calls.stream(STREAM)(ASKED) if is_stream else calls.unary(READ)(ASKED)
            await owner.began.wait()
            call.cancel()
            await owner.ended.wait()
    owner = Owner()
    owner.answer = wait
    async with forwarding(owner) as (calls, _), asyncio.timeout(WAIT_S):
        error = await failed(calls.unary(READ)(ASKED, timeout=0.2))
        assert isinstance(unwrap(error), Deadline)
        await owner.ended.wait()


async def test_an_unread_stream_blocks_the_owner() -> None:
    owner = Owner()
    async with forwarding(owner) as (calls, _), asyncio.timeout(WAIT_S):
        call = calls.stream(STREAM)(ASKED)
        await call.read()
        for _ in range(
            300
        ):  # calls that pass it meanwhile: enough of them to send all there is room for, many times over
            await calls.unary(READ)(ASKED)
        assert owner.sent * (64 << 10) < 8 << 20
        call.cancel()
        await owner.ended.wait()


async def test_a_duplex_stream_goes_both_ways_and_ends_from_either_side() -> None:
    owner = Owner()
    async with forwarding(owner) as (calls, _), asyncio.timeout(WAIT_S):
        call = calls.duplex(APPENDS)()
        await call.initial_metadata()  # before anything is sent
        for message in (START, APPEND, APPEND):
            await call.write(message)
            assert await call.read() == message
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        call = calls.duplex(APPENDS)()
        owner.began.clear()
        owner.ended.clear()
        await call.write(START)
        await owner.began.wait()
        call.cancel()
        await owner.ended.wait()


def counted(calls: Calls) -> dict[str, int]:
    """Return the counts of forwarded calls by outcome, without zeros."""
    return {outcome: int(value) for value, (_, outcome) in calls.shards.forwarded.points() if value}


async def test_each_forwarded_call_is_counted_once_by_how_it_ended() -> None:
    owner = Owner()

    async def refuse(_message: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "why")
        return b""

    async def wait(_message: bytes, _context: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    async with forwarding(owner) as (calls, behind), asyncio.timeout(WAIT_S):
        points = list(calls.shards.forwarded.points())
        assert [labels for _, labels in points] == [("0", outcome.value) for outcome in Outcome]
        assert not any(value for value, _ in points)
        await calls.unary(READ)(ASKED)
        duplex = calls.duplex(APPENDS)(iter([START, APPEND]))
        assert [message async for message in duplex] == [START, APPEND]
        assert counted(calls) == {"ok": 2}
        owner.answer = refuse
        await failed(calls.unary(READ)(ASKED))
        duplex = calls.duplex(APPENDS)(iter([START, FAIL]))
        assert await duplex.read() == START
        await failed(duplex.read())
        assert counted(calls) == {"ok": 2, "refused": 2}
        owner.answer = wait
        await failed(calls.unary(READ)(ASKED, timeout=0.2))
        stream = calls.stream(STREAM)(ASKED)
        await stream.read()
        owner.ended.clear()
        stream.cancel()
        await owner.ended.wait()
        while counted(calls).get("left") != 2:  # noqa: ASYNC110 - a handler that ends sends no notification
            await asyncio.sleep(0)
        await behind.stop(0)
        await failed(calls.unary(READ)(ASKED))
        await failed(calls.stream(STREAM)(ASKED).read())
        assert counted(calls) == {"ok": 2, "refused": 2, "left": 2, "unreachable": 2}


class Caller:
    """The context of a forwarded call, as far as the forwarder uses it. (A flooding gRPC client loses answers itself.)"""

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    def time_remaining(self) -> float | None:
        return None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def set_trailing_metadata(self, metadata: object) -> None:
        raise AssertionError(metadata)

    async def write(self, message: bytes) -> None:
        self.answers.append(message)


async def test_answers_before_the_owner_s_failure_arrive_however_much_is_still_sent() -> None:
    behind = owner_server(Owner(), None)
    shards = ShardForwarder((await behind.start(),), caller=CallerAccess(), cluster_id="c")

    async def flood() -> AsyncIterator[bytes]:
        for message in (START, *[APPEND] * 50, FAIL):
            yield message
        while True:
            yield APPEND
            await asyncio.sleep(0)

    try:
        async with shards, asyncio.timeout(WAIT_S):
            for _ in range(20):
                caller = Caller()
                with pytest.raises(EddylineError, match="enough") as raised:
                    await shards.duplex(0, APPENDS, flood(), caller)
                assert raised.value.code is Code.ABORTED
                assert caller.answers == [START, *[APPEND] * 50]
    finally:
        await behind.stop(0)


async def test_an_owner_that_stops_in_mid_call_is_unreachable() -> None:
    owner = Owner()

    async def wait(_message: bytes, _context: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    owner.answer = wait
    async with forwarding(owner) as (calls, behind), asyncio.timeout(WAIT_S):
        call = calls.unary(READ)(ASKED)
        await owner.began.wait()
        await behind.stop(0)
        for error in (await failed(call), await failed(calls.unary(READ)(ASKED))):
            failure = unwrap(error)
            assert isinstance(failure, StoreUnreachable)
            assert failure.metadata == {"shardIndex": "0"}


async def test_streams_end_when_the_role_stops_and_unary_calls_complete() -> None:
    owner, go = Owner(), asyncio.Event()

    async def wait(message: bytes, _context: Any) -> bytes:
        await go.wait()
        return message

    owner.answer = wait
    async with forwarding(owner) as (calls, _), asyncio.timeout(WAIT_S):
        single, stream, duplex = calls.unary(READ)(ASKED), calls.stream(STREAM)(ASKED), calls.duplex(APPENDS)()
        await duplex.write(START)
        assert (await duplex.read(), len(as_bytes(await stream.read()))) == (START, 64 << 10)
        await owner.began.wait()
        calls.shards.end_streams()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            while await stream.read() is not grpc.aio.EOF:
                pass
        for error in (raised.value, await failed(duplex.read()), await failed(calls.stream(STREAM)(ASKED).read())):
            assert isinstance(unwrap(error), NotReady)
        go.set()
        assert await single == ASKED


async def test_a_store_that_does_not_know_the_role_s_key_is_unreachable_to_the_caller(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    keys.add("somebody", "role")
    async with forwarding(Owner(), behind_access=keys.access()) as (calls, _):
        error = unwrap(await failed(calls.unary(READ)(ASKED)))
        assert isinstance(error, StoreUnreachable)
        assert "refused this role's key" in error.message


async def test_a_forwarded_call_to_a_role_without_shards_is_refused() -> None:
    async with forwarding(Owner()) as (calls, _):
        error = await failed(calls.unary(READ)(ASKED, metadata=(("eddyline-forwarded", "c"),)))
        assert isinstance(unwrap(error), WrongShard)


async def test_refused_calls_name_the_role_that_serves_them() -> None:
    owner = Owner()
    async with forwarding(owner) as (calls, _):
        for path in methods(LOG_SERVICE, TOPIC_SERVICE):
            if path not in METHODS:
                error = await outcome(calls.channel, path)
                assert isinstance(error, ServedElsewhere)
                assert "call a store" in error.message
    assert not owner.received


async def test_a_list_is_requested_from_every_shard() -> None:
    owner = Owner()

    async def one(_message: bytes, _context: Any) -> bytes:
        return topic_pb2.ListTopicsResponse(topics=[topic_pb2.Topic(name="t")]).SerializeToString()

    owner.answer = one
    async with forwarding(owner) as (calls, _):
        answer = topic_pb2.ListTopicsResponse.FromString(await calls.unary(LIST)(b""))
        assert ([topic.name for topic in answer.topics], answer.next_page_token) == (["t"], "")


async def test_the_role_s_key_and_the_caller_go_with_a_call_and_scopes_hold_before_it(tmp_path: Path) -> None:
    keys, owner = Keys(tmp_path), Owner()
    keys.add("front", "role")
    reader = keys.add("reader", "read", prefixes=("t",))
    writer = keys.add("writer", "write")
    own = tmp_path / "own.key"
    own.write_text(secret_of("front"), encoding="utf-8")
    async with forwarding(owner, access=keys.access(key_file=str(own))) as (calls, _):
        assert await calls.unary(READ)(ASKED, metadata=reader.key.metadata()) == ASKED
        assert owner.metadata["authorization"] == f"Bearer {secret_of('front')}"
        assert owner.metadata["x-eddyline-principal"] == '{"name":"reader","scopes":["read"],"prefixes":["t"]}'
        owner.received.clear()
        other = log_pb2.ReadRecordsRequest(topic="other").SerializeToString()
        for request, caller in ((other, reader), (ASKED, writer), (ASKED, CallerAccess(CallerKey("unknown" * 4)))):
            error = await failed(calls.unary(READ)(request, metadata=caller.key.metadata()))
            assert error.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
        call = calls.duplex(APPENDS)(iter([START]), metadata=reader.key.metadata())
        assert (await failed(call.read())).code() is grpc.StatusCode.PERMISSION_DENIED
        assert not owner.received
