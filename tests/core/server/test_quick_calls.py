"""Quick calls behind the gates of a server: each refusal as the interceptors make it, on both wires."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc
import pytest

from eddyline.core.auth.caller_channel import CallerAccess, CallerKey
from eddyline.core.auth.grant import PRINCIPAL_KEY
from eddyline.core.errors import TopicNotFound
from eddyline.core.forwarding.interceptor import ForwardingInterceptor
from eddyline.core.forwarding.shards import ShardForwarder
from eddyline.core.records.record import MESSAGE_BYTES_MAX
from eddyline.core.runtime.settings import WIRES
from eddyline.core.server.append_limiter import AppendLimiter
from eddyline.core.server.quick_calls import QUICK_BYTES_MAX, Later, QuickMethod
from eddyline.core.server.server import RawMethod, make_server
from eddyline.core.transport.cluster_check import CLUSTER_ID_KEY, FORWARDED_KEY
from eddyline.core.transport.status import unwrap
from eddyline.v1 import fold_pb2, log_pb2
from tests.support.access import Keys, calling
from tests.support.hang import HANG_S
from tests.support.store.served import until
from tests.support.store.shards import names_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from eddyline.core.auth.role import RoleAccess
    from eddyline.core.errors import EddylineError
    from eddyline.core.server.server import RoleServer

FOLD: Final = "eddyline.v1.FoldService"
GET: Final = f"/{FOLD}/GetEntry"
LOG: Final = "eddyline.v1.LogService"
APPEND: Final = f"/{LOG}/AppendRecords"
ADDRESSES: Final = ("127.0.0.1:1", "127.0.0.1:2")


class OwnShard:
    index = 0

    async def has_source(self, _name: str) -> bool:
        return False


class Entries:
    """GetEntry, and AppendRecords whose answer comes when the test has it; which way each call took."""

    def __init__(self, server: RoleServer) -> None:
        self.slow: list[str] = []
        self.quick: list[str] = []
        self.acks: list[asyncio.Future[bytes]] = []
        self.error: Exception | None = None
        parse = fold_pb2.GetEntryRequest.FromString
        server.add_raw_methods(FOLD, {"GetEntry": RawMethod(self.get, parse)})
        server.add_quick_methods(FOLD, {"GetEntry": QuickMethod(parse, self.get_now)})
        server.add_raw_methods(LOG, {"AppendRecords": RawMethod(self.append, _apart)})
        server.add_quick_methods(LOG, {"AppendRecords": QuickMethod(_apart, self.append_now)})

    async def get(self, request: fold_pb2.GetEntryRequest, _context: object) -> bytes:
        self.slow.append(request.topic)
        if self.error is not None:
            raise self.error
        return b"slow"

    def get_now(self, request: fold_pb2.GetEntryRequest, _metadata: object) -> bytes | None:
        if request.key == b"on disk":
            return None
        self.quick.append(request.topic)
        if self.error is not None:
            raise self.error
        return b"quick"

    async def append(self, request: object, _context: object) -> bytes:
        later = self.append_now(request, ())
        return later.encode(await later.future)

    def append_now(self, _request: object, _metadata: object) -> Later:
        ack: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.acks.append(ack)
        return Later(ack, bytes)


class Apart:
    """A split request, as the rules expect it of AppendRecords."""

    def __init__(self, message: log_pb2.AppendRecordsRequest) -> None:
        self.message = message


def _apart(data: bytes) -> Apart:
    return Apart(log_pb2.AppendRecordsRequest.FromString(data))


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@asynccontextmanager
async def serving(
    wire: str, *, access: RoleAccess | None = None, interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
) -> AsyncIterator[tuple[str, Entries]]:
    server = make_server(
        "127.0.0.1:0", wire=wire, cluster_id="mine", access=access, interceptors=interceptors, new_id=lambda: "id-1"
    )
    entries = Entries(server)
    address = await server.start()
    try:
        async with asyncio.timeout(HANG_S):
            yield address, entries
    finally:
        await server.stop(0)


def request(topic: str = "t", key: bytes = b"k") -> bytes:
    return fold_pb2.GetEntryRequest(topic=topic, key=key).SerializeToString()


async def get(
    channel: grpc.aio.Channel, message: bytes, metadata: tuple[tuple[str, str], ...] = ()
) -> bytes | EddylineError:
    """The answer, or the error."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(GET)
    try:
        return await call(message, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return unwrap(error)


async def reason(channel: grpc.aio.Channel, message: bytes, metadata: tuple[tuple[str, str], ...] = ()) -> str:
    error = await get(channel, message, metadata)
    assert not isinstance(error, bytes)
    return error.reason


async def test_only_the_own_wire_answers_quickly(wire: str) -> None:
    async with serving(wire) as (address, entries), grpc.aio.insecure_channel(address) as channel:
        answers = [await get(channel, request("a")), await get(channel, request("b", b"on disk"))]
    assert (answers, entries.quick, entries.slow) == (
        ([b"quick", b"slow"], ["a"], ["b"]) if wire == "own" else ([b"slow"] * 2, [], ["a", "b"])
    )


async def test_who_has_no_key_or_scope_or_prefix_is_refused_with_the_reason(wire: str, keys: Keys) -> None:
    reader, writer = keys.add("reader", "read", prefixes=("o.",)), keys.add("writer", "write")
    access = keys.access()
    async with serving(wire, access=access) as (address, entries):
        async with calling(address, CallerAccess()) as channel:
            for _ in range(3):
                assert await reason(channel, request()) == "UNAUTHENTICATED"
        async with calling(address, CallerAccess(CallerKey("wrong"))) as channel:
            assert await reason(channel, request()) == "UNAUTHENTICATED"
        assert access.interceptor.refused_count == 4
        async with calling(address, writer) as channel:
            assert await reason(channel, request()) == "PERMISSION_DENIED"
        async with calling(address, reader) as channel:
            assert isinstance(await get(channel, request("o.1")), bytes)
            assert await reason(channel, request("p.1")) == "PERMISSION_DENIED"
            assert isinstance(await get(channel, request("o.2")), bytes)
        assert [*entries.quick, *entries.slow] == ["o.1", "o.2"]
        await until(lambda: not access.interceptor.quotas.requests)


async def test_replaced_keys_hold_from_the_next_call_of_an_open_connection(wire: str, keys: Keys) -> None:
    caller = keys.add("caller", "read")
    keys.add("other", "read")
    access = keys.access()
    async with serving(wire, access=access) as (address, _), calling(address, caller) as channel:
        assert isinstance(await get(channel, request()), bytes)
        keys.add("caller", "write")
        await access.poll()
        assert await reason(channel, request()) == "PERMISSION_DENIED"
        keys.add("caller", "read", prefixes=("a.",))
        await access.poll()
        assert await reason(channel, request()) == "PERMISSION_DENIED"
        assert isinstance(await get(channel, request("a.1")), bytes)
        keys.take("caller")
        await access.poll()
        assert await reason(channel, request("a.1")) == "UNAUTHENTICATED"
        keys.add("caller", "read")
        await access.poll()
        assert isinstance(await get(channel, request()), bytes)


async def test_a_principal_counts_by_its_own_prefixes_and_only_a_role_has_one(wire: str, keys: Keys) -> None:
    role, reader = keys.add("role", "role"), keys.add("reader", "read")
    principal = ((PRINCIPAL_KEY, json.dumps({"name": "p", "scopes": ["read"], "prefixes": ["p."]})),)
    async with serving(wire, access=keys.access()) as (address, _):
        async with calling(address, role) as channel:
            assert isinstance(await get(channel, request("any")), bytes)
            assert isinstance(await get(channel, request("p.1"), principal), bytes)
            assert await reason(channel, request("any"), principal) == "PERMISSION_DENIED"
        async with calling(address, reader) as channel:
            assert await reason(channel, request("p.1"), principal) == "PERMISSION_DENIED"


async def test_a_caller_of_another_cluster_is_refused(wire: str) -> None:
    async with serving(wire) as (address, entries), grpc.aio.insecure_channel(address) as channel:
        for key in (CLUSTER_ID_KEY, FORWARDED_KEY):
            assert isinstance(await get(channel, request("a"), ((key, "mine"),)), bytes)
            assert await reason(channel, request("b"), ((key, "other"),)) == "CLUSTER_MISMATCH"
    assert {*entries.quick, *entries.slow} == {"a"}


async def test_topics_of_another_shard_are_not_answered_here(wire: str) -> None:
    mine, other = (names_on(shard, 2, 1)[0] for shard in (0, 1))
    shards = ShardForwarder(ADDRESSES, caller=CallerAccess(), cluster_id="mine")
    gate = ForwardingInterceptor(shards, own=OwnShard())
    marked = ((FORWARDED_KEY, "mine"),)
    async with (
        shards,
        serving(wire, interceptors=(gate,)) as (address, entries),
        grpc.aio.insecure_channel(address) as channel,
    ):
        for metadata in ((), marked):
            assert isinstance(await get(channel, request(mine), metadata), bytes)
        assert await reason(channel, request(other), marked) == "WRONG_SHARD"
    assert {*entries.quick, *entries.slow} == {mine}


async def test_a_full_quota_refuses_and_is_given_back(wire: str, keys: Keys) -> None:
    writer = keys.add("writer", "write", requests_max=2)
    access = keys.access()
    async with serving(wire, access=access) as (address, entries), calling(address, writer) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(APPEND)
        message = log_pb2.AppendRecordsRequest(topic="t").SerializeToString()
        calls = [call(message) for _ in range(2)]
        await until(lambda: len(entries.acks) == 2)
        assert access.interceptor.quotas.requests["writer"] == 2
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(message)
        assert unwrap(failed.value).reason == "QUOTA_REQUESTS"
        entries.acks[0].set_result(b"done")  # of either: calls may change places on their way
        await until(lambda: access.interceptor.quotas.requests["writer"] == 1)
        entries.acks[1].set_result(b"done")
        assert [await call for call in calls] == [b"done"] * 2
        await until(lambda: not access.interceptor.quotas.requests)


async def test_appends_wait_for_memory_behind_those_that_wait(wire: str) -> None:
    limiter = AppendLimiter(MESSAGE_BYTES_MAX)
    async with (
        serving(wire, interceptors=(limiter,)) as (address, entries),
        grpc.aio.insecure_channel(address) as channel,
    ):
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(APPEND)
        message = log_pb2.AppendRecordsRequest(topic="t").SerializeToString()
        first = call(message)
        await until(lambda: len(entries.acks) == 1)
        assert limiter.bytes == 3 * len(message)
        second = call(message)  # the largest message has no room beside the first one
        assert len(entries.acks) == 1
        entries.acks[0].set_result(b"1")
        assert await first == b"1"
        await until(lambda: len(entries.acks) == 2)
        entries.acks[1].set_result(b"2")
        assert await second == b"2"
        await until(lambda: not limiter.bytes)


@pytest.mark.parametrize("error", [TopicNotFound("no topic t", topic="t"), KeyError("secret")])
async def test_an_error_has_its_status_and_nothing_runs_twice(
    wire: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(wire) as (address, entries), grpc.aio.insecure_channel(address) as channel:
        entries.error = error
        raised = await get(channel, request("t"))
        assert not isinstance(raised, bytes)
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(APPEND)
        appended = call(log_pb2.AppendRecordsRequest(topic="t").SerializeToString())
        await until(lambda: len(entries.acks) == 1)
        entries.acks[0].set_exception(error)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await appended
    told = {(one.reason, one.message, tuple(one.metadata.items())) for one in (raised, unwrap(failed.value))}
    assert len(told) == 1
    assert len([*entries.quick, *entries.slow]) == 1
    if isinstance(error, KeyError):
        assert (raised.reason, "id-1" in raised.message, "secret" in raised.message) == ("INTERNAL", True, False)
        assert caplog.text.count("unexpected error in a call") == 2
    else:
        assert raised.reason == "TOPIC_NOT_FOUND"


async def test_bytes_that_are_no_request_and_large_ones_go_to_the_interceptors(wire: str) -> None:
    async with serving(wire) as (address, entries), grpc.aio.insecure_channel(address) as channel:
        assert await reason(channel, b"\xff") == "INVALID_ARGUMENT"
        assert await get(channel, request(key=bytes(QUICK_BYTES_MAX + 1))) == b"slow"
        assert entries.slow == ["t"]


async def test_an_interceptor_that_is_no_gate_sees_every_call(wire: str) -> None:
    class Counting(grpc.aio.ServerInterceptor):
        seen = 0

        async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
            self.seen += 1
            return await continuation(handler_call_details)

    counting = Counting()
    async with (
        serving(wire, interceptors=(counting,)) as (address, entries),
        grpc.aio.insecure_channel(address) as channel,
    ):
        assert await get(channel, request()) == b"slow"
    assert (counting.seen, entries.quick) == (1, [])


async def test_a_deadline_ends_a_call_whose_answer_comes_later(wire: str) -> None:
    async with serving(wire) as (address, entries), grpc.aio.insecure_channel(address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(APPEND)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(log_pb2.AppendRecordsRequest(topic="t").SerializeToString(), timeout=0.2)
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        for ack in entries.acks:
            if not ack.done():
                ack.set_result(b"late")
        assert isinstance(await get(channel, request()), bytes)
