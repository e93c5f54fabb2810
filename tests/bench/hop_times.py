"""P4 hop by hop: where the time between a put and its subscriber goes, by the spans of the roles themselves.

A cluster of its own with tracing on, since spans cost a little of what is measured: `SAMPLES_A_S` puts a second carry a
`traceparent`, all others none. A hop is the median time between two marks of a trace. The marks of a process follow the
wall clock within a few microseconds once it has made some hundred spans, hence the warm-up. Beside the hops stands the
processor time that each role used for a message.

2026-11-29, in us, before and after three changes, in turns beside other load, the lower of two turns:

    hop                              1 000/s           5 000/s
    put_to_ingest                     678    496        793    642
    ingest_gathers                    490    113        758    147     waits for the batch in flight
    ingest_to_store                 1 082    525      1 049    476     a step of ApplyStream in place of a call
    store_writes                      283    190        246    223     on the writer's thread, and back
    store_folds                       204    105        325    175     on the event loop in place of a thread
    store_to_delivery               1 242    601        949    779     FollowTopics
    delivery_turn                      36     29         33     34
    delivery_wakes                     87     70         81     87
    delivery_to_subscriber            658    253        337    312

Conversions are little of it: columns of a chunk 10 to 18 us, their checks in the store 20 to 35 and in delivery 12 to 24, a
read of the newest frame 13, an encoded frame 7. Most of the rest is gRPC's: 130 us a message on a stream.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc
import nats
from nats.js.api import KeyValueConfig

from eddyline.core.telemetry import names as telemetry
from eddyline.v1 import delivery_pb2, delivery_pb2_grpc, types_pb2
from tests.bench.harness import Figure
from tests.support.cluster.process_figures import processor_s
from tests.support.cluster.processes import delivery_at, free_address, ingest_process, nats_server, store_process
from tests.support.telemetry.trace_collector import trace_collector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from nats.aio.client import Client

    from tests.support.telemetry.trace_collector import Seen, TraceCollector

IS_WANTED = bool(os.environ.get("EDDYLINE_BENCH_HOPS"))
BUCKET = "hops"
HISTORY = 64
KEYS = 1_000
VALUE = bytes(100)
SAMPLES_A_S = 15
"""Below the bound of sampled records a second, `eddyline.core.telemetry.tracing.SAMPLED_MAX`."""
RATIO = "0.000000001"
"""Tracing is on, and nothing is sampled by chance."""
WARM_UP_S = 4
SECONDS = 8
TICK_S = 0.002
EXPORT_S = 3.0
"""Longer than the interval at which roles push their spans."""
HOPS: Final = (
    "put_to_ingest",
    "ingest_gathers",
    "ingest_to_store",
    "store_writes",
    "store_folds",
    "store_to_delivery",
    "delivery_turn",
    "delivery_wakes",
    "delivery_to_subscriber",
)


class HopCluster(NamedTuple):
    """One of each role, traced. `pids` by role."""

    client: Client
    delivery: str
    collector: TraceCollector
    pids: dict[str, int]


class Sampled(NamedTuple):
    """Wall clock times in ns of the sampled puts, by trace id: when each was sent, and when its frame was received."""

    sent: dict[str, int]
    received: dict[str, int]


@asynccontextmanager
async def hop_cluster(directory: Path) -> AsyncIterator[HopCluster]:
    """Bring the cluster up."""
    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(trace_collector())
        common = {"EDDYLINE_COMMON_OTLP_URL": collector.url, "EDDYLINE_COMMON_TRACE_RATIO": RATIO}
        url = await stack.enter_async_context(nats_server(directory))
        client = await nats.connect(url)
        stack.push_async_callback(client.close)
        await client.jetstream().create_key_value(KeyValueConfig(bucket=BUCKET, history=HISTORY))
        store, address = await stack.enter_async_context(store_process(directory / "store", **common))
        ingest, _ = await stack.enter_async_context(ingest_process(address, url, directory, BUCKET, **common))
        watched = free_address()
        delivery = await stack.enter_async_context(delivery_at(watched, address, **common))
        pids = {"ingest": ingest.pid, "store": store.pid, "delivery": delivery.pid}
        yield HopCluster(client, watched, collector, pids)


async def measure_hops(directory: Path, rates: Sequence[int]) -> list[Figure]:
    """The medians of all hops at each rate, in us, and each role's processor time a message."""
    figures: list[Figure] = []
    async with hop_cluster(directory) as cluster:
        await _round(cluster, rates[0], WARM_UP_S)
        for rate in rates:
            before_s = {role: processor_s(pid) for role, pid in cluster.pids.items()}
            sampled = await _round(cluster, rate, SECONDS)
            used_s = {role: processor_s(pid) - before_s[role] for role, pid in cluster.pids.items()}
            spans = [span for span in cluster.collector.spans if span.trace_id in sampled.received]
            times = hop_times(spans, sampled)
            for hop, values in zip(HOPS, zip(*times, strict=True), strict=True):
                figures.append(Figure("P4", f"{hop}_at_{rate}", statistics.median(values), "us"))
            figures += [
                Figure("P4", f"processor_{role}_at_{rate}", seconds / (rate * SECONDS) * 1e6, "us/record")
                for role, seconds in used_s.items()
            ]
    return figures


def hop_times(spans: Sequence[Seen], sampled: Sampled) -> list[list[float]]:
    """The times of the hops in us, one row a trace; traces that lack a mark are left out."""
    by_trace: dict[str, dict[str, Seen]] = {}
    for span in spans:
        by_trace.setdefault(span.trace_id, {})[span.name] = span
    rows: list[list[float]] = []
    for trace_id, named in by_trace.items():
        if not {*telemetry.SPAN_KINDS} <= named.keys() or not named[telemetry.SPAN_STORE_COMMIT].event_ns:
            continue
        commit = named[telemetry.SPAN_STORE_COMMIT]
        ingest, received = named[telemetry.SPAN_INGEST_RECEIVE], named[telemetry.SPAN_DELIVERY_RECEIVE]
        marks = (
            sampled.sent[trace_id],
            ingest.start_ns,
            ingest.end_ns,
            commit.start_ns,
            commit.event_ns[0],
            commit.end_ns,
            received.start_ns,
            received.end_ns,
            named[telemetry.SPAN_DELIVERY_SEND].start_ns,
            sampled.received[trace_id],
        )
        rows.append([(after - before) / 1e3 for before, after in pairwise(marks)])
    return rows


async def _round(cluster: HopCluster, rate: int, seconds: float) -> Sampled:
    """Put at `rate` for `seconds` beside a subscriber, and wait until the roles have pushed their spans."""
    sampled = Sampled({}, {})
    async with asyncio.TaskGroup() as tasks:
        receiving = tasks.create_task(_receive(cluster.delivery, sampled.received))
        await asyncio.sleep(0.5)
        await _put(cluster.client, rate, seconds, sampled.sent)
        await asyncio.sleep(EXPORT_S)
        receiving.cancel()
    return sampled


async def _put(client: Client, rate: int, seconds: float, sent_ns: dict[str, int]) -> None:
    started, sent, every = time.perf_counter(), 0, rate // SAMPLES_A_S
    while (passed := time.perf_counter() - started) < seconds:
        while sent < passed * rate:
            headers = None
            if sent % every == 0:
                trace_id = os.urandom(16).hex()
                headers = {"traceparent": f"00-{trace_id}-{trace_id[:16]}-01"}
                sent_ns[trace_id] = time.time_ns()
            await client.publish(f"$KV.{BUCKET}.k{sent % KEYS}", VALUE, headers=headers)
            sent += 1
        await client.flush()
        await asyncio.sleep(TICK_S)


async def _receive(address: str, received_ns: dict[str, int]) -> None:
    topic = delivery_pb2.WatchTopic(topic=BUCKET, point=delivery_pb2.START_POINT_TAIL)
    request = delivery_pb2.WatchTopicsRequest(topics=[topic], format=types_pb2.BATCH_FORMAT_COLUMNS)
    async with grpc.aio.insecure_channel(address) as channel:
        async for frame in delivery_pb2_grpc.DeliveryServiceStub(channel).WatchTopics(request):
            if frame.traceparent:
                received_ns.setdefault(frame.traceparent.split("-")[1], time.time_ns())
