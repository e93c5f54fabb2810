"""Access at a real store over gRPC: who is let in, what lists show, whom a role speaks for, what is audited, what ends."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from eddyline.core.auth.caller_channel import CallerAccess, CallerKey
from eddyline.core.auth.grant import PRINCIPAL_KEY, Grant, Scope, set_caller
from eddyline.core.auth.interceptor import OPEN_CALLS_MAX
from eddyline.core.auth.rules import RULES
from eddyline.core.errors import PermissionDenied, Unauthenticated
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.store_link.grpc import GrpcLink
from eddyline.core.transport.status import unwrap
from eddyline.store.__main__ import SERVICES
from eddyline.v1 import apply_pb2, log_pb2, topic_pb2, types_pb2
from eddyline.v1.apply_pb2_grpc import ApplyServiceStub
from eddyline.v1.log_pb2_grpc import LogServiceStub
from eddyline.v1.topic_pb2_grpc import TopicServiceStub
from tests.support.access import Keys, calling, methods, outcome
from tests.support.hang import HANG_S
from tests.support.store.served import refused, served_store, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.core.auth.role import RoleAccess
    from tests.support.store.served import ServedStore

    Stream = grpc.aio.UnaryStreamCall[Any, Any] | grpc.aio.StreamStreamCall[Any, Any]

STORE_METHODS = sorted(methods(*SERVICES))
OTHERS = (
    "/grpc.channelz.v1.Channelz/GetServers",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)


@asynccontextmanager
async def store_with(keys: Keys, folder: Path) -> AsyncIterator[tuple[ServedStore, RoleAccess]]:
    keys.add("anybody", "read")
    access = keys.access()
    async with served_store(folder / "data", access=access) as store:
        yield store, access


def rows(*values: bytes) -> types_pb2.RecordBatch:
    return types_pb2.RecordBatch(records=[types_pb2.Record(data=value) for value in values])


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


async def test_nothing_but_health_answers_without_a_key(keys: Keys, tmp_path: Path) -> None:
    async with store_with(keys, tmp_path) as (store, _), calling(store.address, CallerAccess()) as channel:
        for method in (*STORE_METHODS, *OTHERS):
            error = await outcome(channel, method)
            assert isinstance(error, Unauthenticated), method
        assert await outcome(channel, "/grpc.health.v1.Health/Check") is None


@pytest.mark.parametrize("secret", ["wrong", "secret-of-anybod", "secret-of-anybodyy", "x" * 4_000])
async def test_a_key_that_is_not_known_is_refused(keys: Keys, tmp_path: Path, secret: str) -> None:
    async with (
        store_with(keys, tmp_path) as (store, _),
        calling(store.address, CallerAccess(CallerKey(secret))) as channel,
    ):
        assert isinstance(await outcome(channel, "/eddyline.v1.ClusterService/GetStatus"), Unauthenticated)


async def test_authorization_without_bearer_is_refused(keys: Keys, tmp_path: Path) -> None:
    async with store_with(keys, tmp_path) as (store, _):
        for value in ("secret-of-anybody", "Basic c2VjcmV0", "Bearer", "Bearer ", ""):
            call = TopicServiceStub(store.channel).ListTopics(
                topic_pb2.ListTopicsRequest(), metadata=(("authorization", value),)
            )
            await refused(call, "UNAUTHENTICATED")


@pytest.mark.parametrize("scope", sorted(scope.value for scope in Scope))
async def test_every_call_is_open_to_its_scopes_alone(keys: Keys, tmp_path: Path, scope: str) -> None:
    caller = keys.add("tester", scope)
    async with store_with(keys, tmp_path) as (store, _), calling(store.address, caller) as channel:
        for method in STORE_METHODS:
            error = await outcome(channel, method, timeout_s=0.3 if "Follow" in method else 5)
            may = scope == "role" or Scope(scope) in RULES[method].scopes
            assert isinstance(error, PermissionDenied) is not may, (method, error)
            assert not isinstance(error, Unauthenticated), method


async def test_prefixes_hold_in_bodies_and_on_lists(keys: Keys, tmp_path: Path) -> None:
    caller = keys.add("orders", "read", "admin", prefixes=("orders.", "o"))
    root = keys.add("root", "admin")
    async with store_with(keys, tmp_path) as (store, _), calling(store.address, root) as everything:
        topics = TopicServiceStub(everything)
        for name in ("a", "orders.a", "orders.b", "other", "p", "z"):
            topic = topic_pb2.Topic(name=name, kind=topic_pb2.TOPIC_KIND_LOG)
            await topics.CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        async with calling(store.address, caller) as channel:
            mine = TopicServiceStub(channel)
            await mine.GetTopic(topic_pb2.GetTopicRequest(topic="orders.a"))
            for name in ("a", "nobody-s", "O"):
                await refused(mine.GetTopic(topic_pb2.GetTopicRequest(topic=name)), "PERMISSION_DENIED")
            created = topic_pb2.Topic(name="x", kind=topic_pb2.TOPIC_KIND_LOG)
            await refused(mine.CreateTopic(topic_pb2.CreateTopicRequest(topic=created)), "PERMISSION_DENIED")
            assert await listed(mine) == ["orders.a", "orders.b", "other"]
            assert await listed(mine, page_size=1) == ["orders.a", "orders.b", "other"]
            assert await listed(mine, "orders.b") == ["orders.b"]
            assert await listed(mine, "a") == []
        assert await listed(topics) == ["a", "orders.a", "orders.b", "other", "p", "z"]


async def listed(stub: TopicServiceStub, prefix: str = "", *, page_size: int = 0) -> list[str]:
    names: list[str] = []
    token = ""
    while True:
        answer = await stub.ListTopics(
            topic_pb2.ListTopicsRequest(name_prefix=prefix, page_size=page_size, page_token=token)
        )
        names += [topic.name for topic in answer.topics]
        token = answer.next_page_token
        if not token:
            return names


async def test_an_append_that_makes_its_topic_needs_admin_too(keys: Keys, tmp_path: Path) -> None:
    writer = keys.add("writer", "write", prefixes=("w.",))
    async with store_with(keys, tmp_path) as (store, _), calling(store.address, writer) as channel:
        log = LogServiceStub(channel)
        request = log_pb2.AppendRecordsRequest(topic="w.a", rows=rows(b"x"))
        await refused(log.AppendRecords(request), "TOPIC_NOT_FOUND")
        request.create.kind = topic_pb2.TOPIC_KIND_LOG
        assert "scopes" in (await refused(log.AppendRecords(request), "PERMISSION_DENIED")).metadata
        start = log_pb2.AppendStart(topic="other")
        stream = log.AppendStream(iter([log_pb2.AppendStreamRequest(start=start)]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(stream))
        assert isinstance(unwrap(caught.value), PermissionDenied)


async def test_a_role_that_forwards_a_call_has_the_rights_of_the_callers_key(keys: Keys, tmp_path: Path) -> None:
    role, root = keys.add("ingest", "role"), keys.add("root", "admin", "read", "write")
    async with store_with(keys, tmp_path) as (store, _), calling(store.address, root) as everything:
        for name in ("a.x", "b.x"):
            topic = topic_pb2.Topic(name=name, kind=topic_pb2.TOPIC_KIND_LOG)
            await TopicServiceStub(everything).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        spoken = CallerAccess(role.key, is_role=True)
        async with calling(store.address, spoken) as channel:
            link = GrpcLink(channel)
            await link.get_topic("b.x")
            set_caller(Grant("reader", frozenset((Scope.READ,)), ("a.",)))
            await link.get_topic("a.x")
            with pytest.raises(PermissionDenied, match="reader"):
                await link.get_topic("b.x")
            with pytest.raises(PermissionDenied, match="reader may not call DeleteTopic"):
                await link.delete_topic("a.x")
            with pytest.raises(PermissionDenied, match="reader may not call CreateTopic"):
                await link.create_topic("a.y", Kind.LOG, TopicConfig())
            with pytest.raises(PermissionDenied, match="reader may not call DeleteSource"):
                await link.delete_source("a.s")
            assert await link.list_sources() == []  # the role's own business


async def test_only_a_role_may_name_another_caller(keys: Keys, tmp_path: Path) -> None:
    admin = keys.add("admin", "admin", "read")
    principal = (PRINCIPAL_KEY, '{"name":"other","scopes":["delete"],"prefixes":[]}')
    async with store_with(keys, tmp_path) as (store, _), calling(store.address, admin) as channel:
        stub = TopicServiceStub(channel)
        deleting = stub.DeleteTopic(topic_pb2.DeleteTopicRequest(topic="a"), metadata=(principal,))
        assert "not a role" in (await refused(deleting, "PERMISSION_DENIED")).message
        await refused(stub.ListTopics(topic_pb2.ListTopicsRequest(), metadata=(principal,)), "PERMISSION_DENIED")


async def test_administrative_and_delete_calls_are_audited(
    keys: Keys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, role = keys.add("root", "admin", "delete", "read"), keys.add("ingest", "role")
    caplog.set_level(logging.INFO, "eddyline.audit")
    async with (
        store_with(keys, tmp_path) as (store, _),
        calling(store.address, root) as channel,
        calling(store.address, CallerAccess(role.key, is_role=True)) as spoken,
    ):
        topics = TopicServiceStub(channel)
        topic = topic_pb2.Topic(name="a", kind=topic_pb2.TOPIC_KIND_LOG)
        await topics.CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        await topics.GetTopic(topic_pb2.GetTopicRequest(topic="a"))
        async for _ in topics.EraseTopic(topic_pb2.EraseTopicRequest(topic="a")):
            pass
        await refused(topics.DeleteTopic(topic_pb2.DeleteTopicRequest(topic="b")), "TOPIC_NOT_FOUND")
        set_caller(Grant("caller", frozenset((Scope.READ,))))
        with pytest.raises(PermissionDenied):
            await GrpcLink(spoken).delete_topic("a")
    told = [record.__dict__["fields"] for record in caplog.records if record.name == "eddyline.audit"]
    shown = [(line["method"], line["principal"], line["via"], line["names"], line["outcome"]) for line in told]
    assert shown == [
        ("TopicService/CreateTopic", "root", "-", "a", "OK"),
        ("TopicService/EraseTopic", "root", "-", "a", "OK"),
        ("TopicService/DeleteTopic", "root", "-", "b", "TOPIC_NOT_FOUND"),
        ("TopicService/DeleteTopic", "caller", "ingest", "a", "PERMISSION_DENIED"),
    ]
    assert all(line["peer"] for line in told)


async def test_without_keys_everybody_is_let_in_and_audited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eddyline.audit")
    async with served_store(tmp_path) as store:
        await store.create("a")
        await store.topics.DeleteTopic(topic_pb2.DeleteTopicRequest(topic="a"))
    told = [record.__dict__["fields"] for record in caplog.records if record.name == "eddyline.audit"]
    assert [(line["method"], line["principal"]) for line in told] == [
        ("TopicService/CreateTopic", "-"),
        ("TopicService/DeleteTopic", "-"),
    ]


async def test_a_key_is_given_and_taken_away_without_a_restart(keys: Keys, tmp_path: Path) -> None:
    async with store_with(keys, tmp_path) as (store, access):
        caller = keys.add("late", "read")
        async with calling(store.address, caller) as channel:
            ask = "/eddyline.v1.TopicService/ListTopics"
            assert isinstance(await outcome(channel, ask), Unauthenticated)
            await access.poll()
            assert await outcome(channel, ask) is None
            keys.take("late")
            await access.poll()
            assert isinstance(await outcome(channel, ask), Unauthenticated)


async def test_a_malformed_file_leaves_the_keys_as_they_were(
    keys: Keys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caller = keys.add("tester", "read")
    async with store_with(keys, tmp_path) as (store, access), calling(store.address, caller) as channel:
        keys.path.write_text("[[key]]\nname = 3", encoding="utf-8")
        await access.poll()
        await access.poll()
        keys.path.unlink()
        await access.poll()
        assert await outcome(channel, "/eddyline.v1.TopicService/ListTopics") is None
        said = [record for record in caplog.records if record.getMessage() == "keys kept"]
        assert [record.levelname for record in said] == ["ERROR", "ERROR"]


async def test_open_streams_of_a_key_that_is_taken_away_end(keys: Keys, tmp_path: Path) -> None:
    going, staying = keys.add("going", "read", "write"), keys.add("staying", "read")
    narrowed, root = keys.add("narrowed", "read", prefixes=("a",)), keys.add("root", "admin")
    async with (
        store_with(keys, tmp_path) as (store, access),
        calling(store.address, root) as everything,
        calling(store.address, going) as channel,
        calling(store.address, staying) as other,
        calling(store.address, narrowed) as third,
    ):
        topic = topic_pb2.Topic(name="a", kind=topic_pb2.TOPIC_KIND_LOG)
        await TopicServiceStub(everything).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        follow = log_pb2.StreamRecordsRequest(topic="a", follow=True)
        streams = [LogServiceStub(one).StreamRecords(follow) for one in (channel, other, third)]
        for stream in streams:
            await stream.read()
        appends = LogServiceStub(channel).AppendStream()
        await appends.write(log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic="a")))
        await appends.write(log_pb2.AppendStreamRequest(append=log_pb2.AppendBatch(rows=rows(b"x"))))
        assert await appends.read() is not grpc.aio.EOF
        keys.take("going")
        keys.add("narrowed", "read", prefixes=("b",))
        await access.poll()
        for ended in (streams[0], appends):
            assert await reason_of(ended) == "UNAUTHENTICATED"
        assert await reason_of(streams[2]) == "PERMISSION_DENIED"
        assert not streams[1].done()
        streams[1].cancel()


async def reason_of(stream: Stream) -> str:
    """Why a stream ends, behind what is under way on it."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with asyncio.timeout(HANG_S):
            while await stream.read() is not grpc.aio.EOF:
                pass
            raise AssertionError(await stream.code())
    return unwrap(caught.value).reason


async def test_a_stream_without_a_reader_ends_too(keys: Keys, tmp_path: Path) -> None:
    going, root = keys.add("going", "read"), keys.add("root", "admin", "write")
    async with store_with(keys, tmp_path) as (store, access), calling(store.address, root) as everything:
        topic = topic_pb2.Topic(name="a", kind=topic_pb2.TOPIC_KIND_LOG)
        await TopicServiceStub(everything).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        for _ in range(8):
            batch = rows(*[b"x" * 100_000] * 10)
            await LogServiceStub(everything).AppendRecords(log_pb2.AppendRecordsRequest(topic="a", rows=batch))
        async with calling(store.address, going) as channel:
            stream = LogServiceStub(channel).StreamRecords(log_pb2.StreamRecordsRequest(topic="a", follow=True))
            await stream.read()
            await until(lambda: len(access.interceptor._calls.open) == 1)
            keys.take("going")
            await access.poll()
            await until(lambda: not access.interceptor._calls.open)
            assert await reason_of(stream) == "UNAUTHENTICATED"


async def test_calls_under_way_are_counted_a_key_and_given_back(keys: Keys, tmp_path: Path) -> None:
    caller = keys.add("busy", "read", requests_max=3)
    other, root = keys.add("other", "read"), keys.add("root", "admin")
    async with (
        store_with(keys, tmp_path) as (store, access),
        calling(store.address, root) as everything,
        calling(store.address, caller) as channel,
        calling(store.address, other) as another,
    ):
        topic = topic_pb2.Topic(name="a", kind=topic_pb2.TOPIC_KIND_LOG)
        await TopicServiceStub(everything).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        follow = log_pb2.StreamRecordsRequest(topic="a", follow=True)
        streams = [LogServiceStub(channel).StreamRecords(follow) for _ in range(3)]
        for stream in streams:
            await stream.read()
        read = log_pb2.ReadRecordsRequest(topic="a")
        error = await refused(LogServiceStub(channel).ReadRecords(read), "QUOTA_REQUESTS")
        assert error.metadata["limit"] == "3"
        assert int(error.metadata["retryAfterMs"]) > 0
        await LogServiceStub(another).ReadRecords(read)
        streams.pop().cancel()
        await until(lambda: access.interceptor.quotas.requests["busy"] == 2)
        await LogServiceStub(channel).ReadRecords(read)
        for stream in streams:
            stream.cancel()
        await until(lambda: not access.interceptor.quotas.requests["busy"])


async def test_calls_without_a_key_leave_room_for_those_with_one(keys: Keys, tmp_path: Path) -> None:
    async with (
        store_with(keys, tmp_path) as (store, access),
        calling(store.address, CallerAccess()) as channel,
        calling(store.address, keys.add("late", "read")) as known,
    ):
        await access.poll()
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/grpc.health.v1.Health/Watch")
        streams = [watch(b"") for _ in range(OPEN_CALLS_MAX)]
        for stream in streams:
            await stream.read()
        error = await outcome(channel, "/grpc.health.v1.Health/Check")
        assert error is not None
        assert error.reason == "QUOTA_REQUESTS"
        assert await outcome(known, "/eddyline.v1.TopicService/ListTopics") is None
        for stream in streams:
            stream.cancel()
        await until(lambda: not access.interceptor.quotas.requests)
        assert await outcome(channel, "/grpc.health.v1.Health/Check") is None


async def test_a_role_follows_with_its_key(keys: Keys, tmp_path: Path) -> None:
    role = keys.add("delivery", "role")
    async with store_with(keys, tmp_path) as (store, _), calling(store.address, role) as channel:
        steps = [apply_pb2.FollowTopicsRequest(credit_bytes=1), apply_pb2.FollowTopicsRequest()]
        call = ApplyServiceStub(channel).FollowTopics(iter(steps))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
        assert unwrap(caught.value).reason == "INVALID_ARGUMENT"
