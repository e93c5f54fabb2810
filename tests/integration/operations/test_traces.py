"""A record followed through real processes: from a NATS message, or a caller's append, to a subscriber's frame."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import nats
import pytest
from nats.js.api import KeyValueConfig

from eddyline.client.connect import Client
from eddyline.client.transport.topology import Topology
from eddyline.client.watch.events import CaughtUp, Records
from eddyline.core.errors import KeyExists, RevisionMismatch
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Op, Record
from eddyline.core.telemetry import names as telemetry
from eddyline.core.transport.channel import open_channel
from eddyline.v1 import delivery_pb2, delivery_pb2_grpc, log_pb2, log_pb2_grpc, topic_pb2, types_pb2
from tests.support.clients.clients import client_at
from tests.support.cluster.processes import delivery_at, free_address, ingest_process, nats_server, store_process
from tests.support.hang import HANG_S
from tests.support.telemetry.scrape import scraped_until
from tests.support.telemetry.trace_collector import trace_collector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    import grpc

    from eddyline.client.watch.events import WatchEvent
    from eddyline.client.watch.watch import Watch
    from tests.support.telemetry.trace_collector import Seen

pytestmark = pytest.mark.integration

BUCKET = "b"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
UNSAMPLED = f"00-{TRACE_ID[::-1]}-{SPAN_ID}-00"
RATIO = "0.000000001"
"""On, and nothing is sampled by chance."""
CHAIN = [
    ("ingest", telemetry.SPAN_INGEST_RECEIVE),
    ("ingest", telemetry.SPAN_INGEST_APPLY),
    ("store", telemetry.SPAN_STORE_COMMIT),
    ("delivery", telemetry.SPAN_DELIVERY_RECEIVE),
    ("delivery", telemetry.SPAN_DELIVERY_SEND),
]


class Cluster(NamedTuple):
    nats_url: str
    store: str
    ingest: str
    delivery: str
    metrics: str


@asynccontextmanager
async def cluster(directory: Path, collector_url: str, ratio: str = RATIO) -> AsyncIterator[Cluster]:
    """One of each role, with a bucket that is copied; the address is where delivery's metrics are."""
    common = {"EDDYLINE_COMMON_OTLP_URL": collector_url, "EDDYLINE_COMMON_TRACE_RATIO": ratio}
    delivery, metrics = free_address(), free_address()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(nats_server(directory))
        client = await nats.connect(url)
        await client.jetstream().create_key_value(KeyValueConfig(bucket=BUCKET, history=5))
        await client.close()
        _, store = await stack.enter_async_context(store_process(directory / "store", **common))
        _, ingest = await stack.enter_async_context(ingest_process(store, url, directory, BUCKET, **common))
        await stack.enter_async_context(
            delivery_at(delivery, store, **common, EDDYLINE_DELIVERY_METRICS_LISTEN=metrics)
        )
        yield Cluster(url, store, ingest, delivery, metrics)


@asynccontextmanager
async def watching(
    at: Cluster, topic: str, frames: asyncio.Queue[delivery_pb2.WatchTopicsResponse]
) -> AsyncIterator[None]:
    """A watch whose frames of records go into a queue; inside it is level."""
    level = asyncio.Event()

    async def read(channel: grpc.aio.Channel) -> None:
        stub = delivery_pb2_grpc.DeliveryServiceStub(channel)
        wanted = delivery_pb2.WatchTopic(topic=topic, point=delivery_pb2.START_POINT_TAIL)
        async for frame in stub.WatchTopics(delivery_pb2.WatchTopicsRequest(topics=[wanted])):
            if frame.HasField("caught_up"):
                level.set()
            if frame.HasField("rows"):
                frames.put_nowait(frame)

    async with open_channel(at.delivery) as channel, asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(channel))
        await level.wait()
        yield
        reading.cancel()


def chain_of(spans: list[Seen], trace_id: str) -> list[tuple[str, str]]:
    """The trace's spans from its first parent on, each the child of the one before."""
    by_parent = {span.parent_id: span for span in spans if span.trace_id == trace_id}
    found, parent = [], SPAN_ID
    while (span := by_parent.get(parent)) is not None:
        found.append((span.service, span.name))
        parent = span.span_id
    return found


async def put(url: str, key: str, traceparent: str) -> None:
    client = await nats.connect(url)
    await client.jetstream().publish(f"$KV.{BUCKET}.{key}", b"v", headers={"traceparent": traceparent})
    await client.close()


async def test_record_is_followed_from_nats_to_its_subscriber(tmp_path: Path) -> None:
    frames: asyncio.Queue[delivery_pb2.WatchTopicsResponse] = asyncio.Queue()
    async with trace_collector() as collector, cluster(tmp_path, collector.url) as at:
        async with asyncio.timeout(HANG_S), watching(at, BUCKET, frames):
            await put(at.nats_url, "untraced", UNSAMPLED)
            assert (await frames.get()).traceparent == ""
            await put(at.nats_url, "traced", TRACEPARENT)
            frame = await frames.get()
            spans = await collector.until(lambda spans: len(chain_of(spans, TRACE_ID)) == len(CHAIN))
        assert chain_of(spans, TRACE_ID) == CHAIN
        assert {span.trace_id for span in spans} == {TRACE_ID}
        by_name = {span.name: span for span in spans}
        assert {name: span.kind for name, span in by_name.items()} == telemetry.SPAN_KINDS
        commit = by_name[telemetry.SPAN_STORE_COMMIT]
        assert commit.events == (telemetry.EVENT_DURABLE,)
        assert commit.attributes[telemetry.ATTRIBUTE_FIRST_SEQ] == frame.cursor.seq
        assert by_name[telemetry.SPAN_INGEST_RECEIVE].attributes[telemetry.ATTRIBUTE_REVISION] == 2
        received = by_name[telemetry.SPAN_DELIVERY_RECEIVE]
        assert frame.traceparent == f"00-{TRACE_ID}-{received.span_id}-01"
        assert all(span.start_ns <= span.end_ns for span in spans)
        assert not any(span.error for span in spans)
        assert {resource["service.name"] for resource in collector.resources} == {"store", "ingest", "delivery"}
        assert len({resource["service.instance.id"] for resource in collector.resources}) == 3
        delivery = await scraped_until(at.metrics, lambda seen: seen.value(telemetry.DELIVERY_EXPORTED_SPANS) == 2)
        assert delivery.value(telemetry.DELIVERY_DROPPED_SPANS) == 0


async def test_append_is_followed_from_its_caller(tmp_path: Path) -> None:
    frames: asyncio.Queue[delivery_pb2.WatchTopicsResponse] = asyncio.Queue()
    async with trace_collector() as collector, cluster(tmp_path, collector.url) as at:
        async with open_channel(at.store) as channel:
            log = log_pb2_grpc.LogServiceStub(channel)
            rows = types_pb2.RecordBatch(records=[types_pb2.Record(data=b"x")])
            create = log_pb2.AppendRecordsRequest(topic="events", rows=rows)
            create.create.kind = topic_pb2.TOPIC_KIND_LOG
            await log.AppendRecords(create)
            async with asyncio.timeout(HANG_S), watching(at, "events", frames):
                append = log_pb2.AppendRecordsRequest(topic="events", rows=rows)
                await log.AppendRecords(append, metadata=(("traceparent", TRACEPARENT),))
                assert TRACE_ID in (await frames.get()).traceparent
                spans = await collector.until(lambda spans: len(chain_of(spans, TRACE_ID)) == 3)
                assert chain_of(spans, TRACE_ID) == CHAIN[2:]
                steps = [
                    log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic="events")),
                    log_pb2.AppendStreamRequest(append=log_pb2.AppendBatch(rows=rows)),
                ]
                other = TRACEPARENT.replace(TRACE_ID, TRACE_ID[::-1])
                async for _ in log.AppendStream(iter(steps), metadata=(("traceparent", other),)):
                    pass
                spans = await collector.until(lambda spans: len(chain_of(spans, TRACE_ID[::-1])) == 3)
        assert chain_of(spans, TRACE_ID[::-1]) == CHAIN[2:]


def client_of(at: Cluster) -> AbstractAsyncContextManager[Client]:
    """The Python client, as if it had requested the topology."""
    return client_at(Topology("local", (at.store,), (at.ingest,), (at.delivery,)), random_source=Random(1))


async def until(watch: Watch, kind: type[Records | CaughtUp]) -> WatchEvent:
    async for event in watch:
        if isinstance(event, kind):
            return event
    raise AssertionError("the watch ended")


async def shown(watch: Watch) -> tuple[list[int], str]:
    """The next records' ops, and the trace that they are part of."""
    records = await until(watch, Records)
    assert isinstance(records, Records)
    return [record.op for record in records.records], (records.traceparent or "")[3:35]


async def test_write_into_a_bucket_is_followed_from_its_caller(tmp_path: Path) -> None:
    """By the Python client: through ingest to NATS, and from there as everybody else's; each before the next is written."""
    said = [f"00-{number:032x}-{SPAN_ID}-01" for number in range(1, 6)]
    ids = [traceparent[3:35] for traceparent in said]
    async with (
        trace_collector() as collector,
        cluster(tmp_path, collector.url) as at,
        asyncio.timeout(HANG_S),
        client_of(at) as client,
        client.watch(BUCKET) as watch,
    ):
        kv = client.kv
        await until(watch, CaughtUp)
        await kv.put(BUCKET, b"untraced", b"v")
        assert await shown(watch) == ([Op.PUT], "")
        await kv.put(BUCKET, b"untraced", b"v", traceparent=UNSAMPLED)
        assert await shown(watch) == ([Op.PUT], "")
        revision = (await kv.create(BUCKET, b"k", b"1", traceparent=said[0])).revision
        assert await shown(watch) == ([Op.PUT], ids[0])
        with pytest.raises(KeyExists):
            await kv.create(BUCKET, b"k", b"2", traceparent=UNSAMPLED)
        revision = (await kv.update(BUCKET, b"k", b"2", expected_revision=revision, traceparent=said[1])).revision
        assert await shown(watch) == ([Op.PUT], ids[1])
        with pytest.raises(RevisionMismatch):
            await kv.update(BUCKET, b"k", b"3", expected_revision=revision - 1, traceparent=UNSAMPLED)
        await kv.put(BUCKET, b"k", b"3", traceparent=said[2], wait_applied=True, on_written=lambda _: None)
        assert await shown(watch) == ([Op.PUT], ids[2])
        await kv.delete(BUCKET, b"k", traceparent=said[3])
        assert await shown(watch) == ([Op.DELETE], ids[3])
        await kv.purge(BUCKET, b"k", traceparent=said[4])
        assert await shown(watch) == ([Op.PURGE], ids[4])
        spans = await collector.until(lambda spans: all(len(chain_of(spans, one)) == len(CHAIN) for one in ids))
    assert [chain_of(spans, one) for one in ids] == [CHAIN] * len(ids)
    assert {span.trace_id for span in spans} == set(ids)


async def test_python_client_states_which_trace_its_appends_are_part_of(tmp_path: Path) -> None:
    said = [f"00-{number:032x}-{SPAN_ID}-01" for number in range(1, 4)]
    record = Record(op=Op.APPEND, data=b"x")
    async with (
        trace_collector() as collector,
        cluster(tmp_path, collector.url) as at,
        asyncio.timeout(HANG_S),
        client_of(at) as client,
    ):
        await client.create_topic("events", Kind.LOG)
        async with client.watch("events", start="tail") as watch:
            await until(watch, CaughtUp)
            await client.append("events", [record], traceparent="no context at all\n")
            assert await shown(watch) == ([Op.APPEND], "")
            await client.append("events", [record], traceparent=said[0])
            assert await shown(watch) == ([Op.APPEND], said[0][3:35])
            await client.append("events", [record], traceparent=said[1], idempotency_key="once")
            assert await shown(watch) == ([Op.APPEND], said[1][3:35])
            async with client.append_stream("events", traceparent=said[2]) as stream:
                await stream.append([record])
            assert await shown(watch) == ([Op.APPEND], said[2][3:35])
        spans = await collector.until(lambda spans: all(len(chain_of(spans, one[3:35])) == 3 for one in said))
    assert all(chain_of(spans, one[3:35]) == CHAIN[2:] for one in said)


async def test_nothing_is_traced_by_default_and_nothing_waits_for_a_collector_that_is_away(tmp_path: Path) -> None:
    frames: asyncio.Queue[delivery_pb2.WatchTopicsResponse] = asyncio.Queue()
    async with (
        trace_collector() as collector,
        cluster(tmp_path / "off", collector.url, ratio="0") as at,
        asyncio.timeout(HANG_S),
        watching(at, BUCKET, frames),
    ):
        await put(at.nats_url, "k", TRACEPARENT)
        assert (await frames.get()).traceparent == ""
    assert not collector.spans
    async with asyncio.timeout(HANG_S), cluster(tmp_path / "away", f"http://{free_address()}", ratio="1") as at:
        async with watching(at, BUCKET, frames):
            await put(at.nats_url, "k", TRACEPARENT)
            assert TRACE_ID in (await frames.get()).traceparent
            # The subscriber stays until its span is over, and each may go by a push of its own, which takes long to fail.
            await scraped_until(at.metrics, lambda seen: seen.value(telemetry.DELIVERY_DROPPED_SPANS) >= 1)
            seen = await scraped_until(at.metrics, lambda seen: seen.value(telemetry.DELIVERY_DROPPED_SPANS) >= 2)
        assert seen.value(telemetry.DELIVERY_DROPPED_SPANS) == 2
        assert seen.value(telemetry.DELIVERY_EXPORTED_SPANS) == 0


async def test_stop_is_not_held_up_by_a_collector_that_does_not_answer(tmp_path: Path) -> None:
    pushed, writers = asyncio.Event(), list[asyncio.StreamWriter]()

    def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        pushed.set()

    silent = await asyncio.start_server(take, "127.0.0.1", 0)
    common = {
        "EDDYLINE_COMMON_OTLP_URL": f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}",
        "EDDYLINE_COMMON_TRACE_RATIO": "1",
    }
    async with silent, store_process(tmp_path / "store", **common) as (store, address):
        async with open_channel(address) as channel:
            log = log_pb2_grpc.LogServiceStub(channel)
            rows = types_pb2.RecordBatch(records=[types_pb2.Record(data=b"x")])
            append = log_pb2.AppendRecordsRequest(topic="events", rows=rows)
            append.create.kind = topic_pb2.TOPIC_KIND_LOG
            await log.AppendRecords(append)
            async with asyncio.timeout(HANG_S):
                await pushed.wait()
            await log.AppendRecords(append)  # its span waits behind that push
        store.terminate()
        async with asyncio.timeout(HANG_S):
            assert await store.wait() == 0
        for writer in writers:
            writer.close()
