"""KvService over gRPC with a real store: the client's calls, read your writes, several sources of a bucket."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import grpc
import pytest
import pytest_asyncio

from eddyline.core.errors import (
    ApplyPending,
    BucketNotCopied,
    Deadline,
    KeyExists,
    KeyInvalid,
    NatsUnreachable,
    RevisionMismatch,
    StoreUnreachable,
    ValueTooLarge,
    WriteUnknown,
)
from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.ingest.copy.dead_letters import ensure_topic
from eddyline.v1 import fold_pb2, fold_pb2_grpc, kv_pb2, kv_pb2_grpc
from tests.support.cluster.processes import store_server
from tests.support.ingest.served import ServedIngest, served_ingest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.nats.server import NatsServer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with store_server(tmp_path_factory.mktemp("store")) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="module")
async def served(nats_server: NatsServer, store: str, request: pytest.FixtureRequest) -> AsyncIterator[ServedIngest]:
    bucket = re.sub(r"[^A-Za-z0-9_]", "_", request.node.name)[:60]
    async with served_ingest(nats_server.url, store, bucket) as made:
        await made.make_bucket()
        yield made


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_b22_a_write_that_was_waited_for_is_read_and_never_an_older_one(served: ServedIngest) -> None:
    await served.copies()
    bucket, client = served.bucket, served.client
    for number in range(20):
        value = b"%d" % number
        written = await client.kv.put(bucket, b"k", value, wait_applied=True)
        assert written.applied_sources == (bucket,)
        entry = await client.get(bucket, b"k")
        assert entry is not None
        assert (entry.data, entry.version) == (value, written.version)


async def test_b22_the_version_of_a_write_is_what_a_read_waits_for(served: ServedIngest, store: str) -> None:
    await served.copies()
    bucket = served.bucket
    async with grpc.aio.insecure_channel(store) as channel:
        fold = fold_pb2_grpc.FoldServiceStub(channel)
        for number in range(10):
            written = await served.client.kv.put(bucket, b"k", b"%d" % number)
            request = fold_pb2.GetEntryRequest(topic=bucket, key=b"k", min_version=written.version)
            answer = await fold.GetEntry(request, timeout=10)
            assert answer.entry.data == b"%d" % number


async def test_every_call_and_its_refusals_come_back_typed(served: ServedIngest) -> None:
    await served.copies()
    bucket, kv = served.bucket, served.client.kv
    created = await kv.create(bucket, b"k", b"1", wait_applied=True)
    with pytest.raises(KeyExists) as exists:
        await kv.create(bucket, b"k", b"2")
    assert exists.value.revision == created.revision
    updated = await kv.update(bucket, b"k", b"2", expected_revision=created.revision, wait_applied=True)
    with pytest.raises(RevisionMismatch) as mismatch:
        await kv.update(bucket, b"k", b"3", expected_revision=created.revision)
    assert mismatch.value.revision == updated.revision
    with pytest.raises(KeyInvalid):
        await kv.put(bucket, b"a b", b"1")
    with pytest.raises(ValueTooLarge):
        await kv.put(bucket, b"k", bytes(9 << 20))
    await kv.delete(bucket, b"k", expected_revision=updated.revision, wait_applied=True)
    assert await served.client.get(bucket, b"k") is None
    purged = await kv.purge(bucket, b"k", wait_applied=True)
    assert purged.stream_identity == created.stream_identity
    again = await kv.create(bucket, b"k", b"4", wait_applied=True)
    assert again.revision == purged.revision + 1


async def test_a_role_that_traces_nothing_passes_no_context_on(served: ServedIngest) -> None:
    bucket, traceparent = served.bucket, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await served.client.kv.put(bucket, b"k", b"1", traceparent=traceparent)
    message = await served.nats.jetstream().get_last_msg(f"KV_{bucket}", f"$KV.{bucket}.k")
    assert "traceparent" not in (message.headers or {})


async def test_a_delete_of_a_key_that_was_never_there_is_waited_for_too(served: ServedIngest) -> None:
    await served.copies()
    written = await served.client.kv.delete(served.bucket, b"never", wait_applied=True)
    assert written.applied_sources == (served.bucket,)
    assert await served.client.get(served.bucket, b"never") is None


async def test_several_sources_are_all_waited_for_or_the_one_named(served: ServedIngest) -> None:
    bucket = served.bucket
    one, two = f"{bucket}-1"[-60:], f"{bucket}-2"[-60:]
    await served.copies(one)
    await served.copies(two)
    both = await served.client.kv.put(bucket, b"k", b"1", wait_applied=True)
    assert both.applied_sources == (one, two)
    named = await served.client.kv.put(bucket, b"k", b"2", wait_applied=True, source=two)
    assert named.applied_sources == (two,)
    entry = await served.client.get(two, b"k")
    assert entry is not None
    assert entry.data == b"2"


async def test_a_key_that_the_source_leaves_out_is_refused_to_who_would_wait(served: ServedIngest) -> None:
    bucket = served.bucket
    await served.copies(key_prefixes=(b"mine.",))
    with pytest.raises(BucketNotCopied, match=r"copies mine\.\*\); nothing was written"):
        await served.client.kv.put(bucket, b"other.k", b"1", wait_applied=True)
    written = await served.client.kv.put(bucket, b"mine.k", b"2", wait_applied=True)
    assert (written.revision, written.applied_sources) == (1, (bucket,))
    entry = await served.client.get(bucket, b"mine.k")
    assert entry is not None
    assert entry.data == b"2"


async def pending_write(served: ServedIngest, expected: str) -> ApplyPending:
    """Write with a wait that ends unapplied, for a reason that has the expected words.

    On a busy machine a call's deadline may come before that answer, or before the wait begins: the next one has twice the
    time.
    """
    for timeout_s in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0):
        try:
            await served.client.kv.put(served.bucket, b"k", b"1", wait_applied=True, timeout_s=timeout_s)
        except ApplyPending as pending:
            if expected in pending.message:
                return pending
        except (Deadline, NatsUnreachable, StoreUnreachable, WriteUnknown):
            continue
    raise AssertionError("no write ended as expected before its deadline")


async def test_a_paused_source_is_named_with_its_state(served: ServedIngest) -> None:
    bucket = served.bucket
    await served.copies()
    await served.client.sources.pause(bucket)
    await served.is_status("PAUSED")
    pending = await pending_write(served, "state PAUSED")
    await served.client.sources.resume(bucket)
    written = await served.client.kv.put(bucket, b"k", b"2", wait_applied=True)
    assert written.revision == pending.revision + 1


async def test_a_stream_copied_by_its_name_is_no_copy_of_a_bucket(served: ServedIngest) -> None:
    bucket = served.bucket
    await served.client.sources.create(bucket, stream=f"KV_{bucket}")
    with pytest.raises(BucketNotCopied):
        await served.client.kv.put(bucket, b"k", b"1", wait_applied=True)


async def test_waiting_without_a_source_writes_nothing(served: ServedIngest) -> None:
    with pytest.raises(BucketNotCopied):
        await served.client.kv.put(served.bucket, b"k", b"1", wait_applied=True)
    assert (await served.client.kv.put(served.bucket, b"k", b"1")).revision == 1


async def test_a_call_that_is_over_before_it_is_applied_answers_within_its_deadline(served: ServedIngest) -> None:
    bucket = served.bucket
    # Somebody holds the source who copies nothing.
    await ensure_topic(served.role.ownership.link, bucket, Kind.KV, TopicConfig())
    await served.role.ownership.link.put_source(SourceDefinition(name=bucket, topic=bucket, bucket=bucket))
    await served.role.ownership.link.acquire_lease(bucket, holder="idle", lease_ms=60_000)
    pending = await pending_write(served, f"bucket {bucket} at revision")
    message = await served.nats.jetstream().get_last_msg(f"KV_{bucket}", f"$KV.{bucket}.k")
    assert pending.revision == message.seq


async def test_a_deadline_in_the_proto_is_the_callers(served: ServedIngest) -> None:
    async with grpc.aio.insecure_channel(served.address) as channel:
        stub = kv_pb2_grpc.KvServiceStub(channel)
        request = kv_pb2.PutEntryRequest(bucket=served.bucket, key=b"k", value=b"1")
        answer = await stub.PutEntry(request)
    assert answer.written.revision == 1
    assert list(answer.written.applied_sources) == []
