"""The metrics of real processes: scraped from the start of each role, equal to what was done, true of what was killed."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

import pytest

from eddyline.core.server.health import LIVE, NATS_LEG, READY, SOURCE_PREFIX, STORE_LEG
from eddyline.core.telemetry import names as telemetry
from eddyline.core.transport.channel import open_channel
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc, delivery_pb2, delivery_pb2_grpc
from tests.support.cluster.processes import (
    delivery_at,
    free_address,
    ingest_process,
    nats_server,
    process,
    serving,
    store_process,
)
from tests.support.delivery.silent_server import mute
from tests.support.hang import HANG_S
from tests.support.nats.bucket_load import fill_bucket
from tests.support.telemetry.metric_collector import collecting
from tests.support.telemetry.scrape import Scrape, check_complete, http_get, scrape, scraped_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

BUCKET = "b"
KEYS = 40
PUSHES_S = 30.0
"""Until every role has pushed that it is ready; they push each second."""


class Cluster(NamedTuple):
    """A running cluster: where it is served and scraped, and the store's process."""

    nats_url: str
    store: asyncio.subprocess.Process
    addresses: dict[str, str]
    metrics: dict[str, str]


async def cluster_of(directory: Path, stack: AsyncExitStack) -> Cluster:
    """One of each, the endpoints at free ports."""
    metrics = {role: free_address() for role in ("store", "ingest", "delivery")}
    listen = {role: {f"EDDYLINE_{role.upper()}_METRICS_LISTEN": address} for role, address in metrics.items()}
    url = await stack.enter_async_context(nats_server(directory))
    store, store_address = await stack.enter_async_context(store_process(directory / "store", **listen["store"]))
    _, ingest = await stack.enter_async_context(
        ingest_process(store_address, url, directory, BUCKET, **listen["ingest"])
    )
    delivery = free_address()
    await stack.enter_async_context(delivery_at(delivery, store_address, **listen["delivery"]))
    return Cluster(url, store, {"store": store_address, "ingest": ingest, "delivery": delivery}, metrics)


async def watched(cluster: Cluster) -> int:
    """Watch the topic from its first record until all of it came; how many records that were."""
    count = 0
    topic = delivery_pb2.WatchTopic(topic=BUCKET, point=delivery_pb2.START_POINT_EARLIEST)
    async with open_channel(cluster.addresses["delivery"]) as channel:
        stub = delivery_pb2_grpc.DeliveryServiceStub(channel)
        async for frame in stub.WatchTopics(delivery_pb2.WatchTopicsRequest(topics=[topic])):
            count += len(frame.rows.records)
            if frame.HasField("caught_up"):
                return count
    raise AssertionError("the stream ended before it was level")


async def test_each_role_is_scraped_from_its_start_and_counts_what_was_done(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = await cluster_of(tmp_path, stack)
        for role, address in cluster.metrics.items():
            seen = await scrape(address)
            check_complete(seen, role)
            async with open_channel(cluster.addresses[role]) as channel:
                status = await cluster_pb2_grpc.ClusterServiceStub(channel).GetStatus(cluster_pb2.GetStatusRequest())
            assert status.metrics_address == address
        await fill_bucket(cluster.nats_url, BUCKET, KEYS)

        def is_copied(seen: Scrape) -> bool:
            applied = seen.series(telemetry.INGEST_APPLIED_RECORDS)
            return (
                applied.get((BUCKET,), 0) >= KEYS
                and seen.value(telemetry.INGEST_SOURCE_STATE, source=BUCKET, state="LIVE") == 1
            )

        ingest = await scraped_until(cluster.metrics["ingest"], is_copied)
        assert ingest.value(telemetry.INGEST_APPLIED_RECORDS, source=BUCKET) == KEYS
        assert ingest.value(telemetry.INGEST_SOURCE_POSITION, source=BUCKET) == KEYS
        check_complete(ingest, "ingest")
        store = await scraped_until(
            cluster.metrics["store"], lambda seen: seen.value(telemetry.STORE_APPENDED_RECORDS) >= KEYS
        )
        assert store.value(telemetry.STORE_APPENDED_RECORDS) == KEYS
        assert store.value(telemetry.STORE_SOURCES) == store.value(telemetry.STORE_TOPICS) == 1
        assert store.value(telemetry.STORE_RESIDENT_BYTES) > 0
        assert store.value(telemetry.STORE_DISK_FREE_BYTES) > 0
        assert await watched(cluster) == KEYS

        def is_over(seen: Scrape) -> bool:
            """A text may be half a second old: of before the watch."""
            delivered = seen.value(telemetry.DELIVERY_DELIVERED_RECORDS)
            return seen.value(telemetry.DELIVERY_WATCHES) == 0 and delivered >= KEYS

        delivery = await scraped_until(cluster.metrics["delivery"], is_over)
        assert delivery.value(telemetry.DELIVERY_DELIVERED_RECORDS) == KEYS
        check_complete(delivery, "delivery")


async def test_each_role_pushes_what_it_is_scraped_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        collector, url = stack.enter_context(collecting())
        monkeypatch.setenv("EDDYLINE_COMMON_OTLP_URL", url)
        monkeypatch.setenv("EDDYLINE_COMMON_OTLP_INTERVAL_MS", "1000")
        cluster = await cluster_of(tmp_path, stack)
        await fill_bucket(cluster.nats_url, BUCKET, KEYS)
        pushed: dict[str, dict[str, float]] = {role: {} for role in cluster.metrics}

        def all_came() -> bool:
            for request in collector.requests:
                for group in request.resource_metrics:
                    (role,) = (
                        pair.value.string_value for pair in group.resource.attributes if pair.key == "service.name"
                    )
                    pushed[role] = {
                        metric.name: sum(point.as_int or point.as_double for point in metric.gauge.data_points)
                        for metric in group.scope_metrics[0].metrics
                    }
            return all(seen.get(f"eddyline_{role}_ready") == 1 for role, seen in pushed.items())

        async with asyncio.timeout(PUSHES_S):
            while not all_came():  # noqa: ASYNC110 - they come on the collector's threads
                await asyncio.sleep(0.1)
        for role, address in cluster.metrics.items():
            assert set(pushed[role]) == (await scrape(address)).names


async def test_store_that_was_killed_is_reported_leg_by_leg(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = await cluster_of(tmp_path, stack)
        ingest = cluster.addresses["ingest"]
        await fill_bucket(cluster.nats_url, BUCKET, 1)
        for name in (READY, LIVE, NATS_LEG, STORE_LEG, SOURCE_PREFIX + BUCKET):
            await serving(ingest, name)
        os.kill(cluster.store.pid, signal.SIGKILL)
        for name in (READY, STORE_LEG):
            await serving(ingest, name, is_serving=False)
            await serving(cluster.addresses["delivery"], name, is_serving=False)
        for name in (LIVE, NATS_LEG, SOURCE_PREFIX + BUCKET):
            await serving(ingest, name)
        seen = await scrape(cluster.metrics["ingest"])
        assert [seen.value(name) for name in (telemetry.INGEST_READY, telemetry.INGEST_NATS_CONNECTED)] == [0, 1]
        assert seen.value(telemetry.INGEST_STORE_CONNECTED, shard="0") == 0
        assert (await scrape(cluster.metrics["delivery"])).value(telemetry.DELIVERY_READY) == 0


async def test_taken_address_refuses_the_start_in_one_line(tmp_path: Path) -> None:
    metrics = free_address()
    async with store_process(tmp_path / "one", EDDYLINE_STORE_METRICS_LISTEN=metrics):
        settings = {
            "EDDYLINE_STORE_LISTEN": free_address(),
            "EDDYLINE_STORE_DATA_DIR": str(tmp_path / "two"),
            "EDDYLINE_STORE_METRICS_LISTEN": metrics,
        }
        async with process("eddyline.store", **settings) as second:
            assert await second.wait() == 1
        assert (await http_get(metrics))[0] == 200


async def test_stop_is_not_held_up_by_a_scraper_nor_by_a_collector_that_does_not_answer(tmp_path: Path) -> None:
    metrics = free_address()
    with mute() as collector:
        more = {
            "EDDYLINE_STORE_METRICS_LISTEN": metrics,
            "EDDYLINE_COMMON_OTLP_URL": f"http://{collector}",
            "EDDYLINE_COMMON_OTLP_INTERVAL_MS": "1000",
        }
        async with store_process(tmp_path / "store", **more) as (store, _):
            host, _, port = metrics.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            await asyncio.sleep(1.5)  # a push is under way
            store.terminate()
            async with asyncio.timeout(HANG_S):
                assert await store.wait() == 0
            writer.close()
