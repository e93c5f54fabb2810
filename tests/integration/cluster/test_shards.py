"""Two stores as shards under real roles: one is killed, the other's topics and sources go on, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import nats
import pytest
from nats.js.api import KeyValueConfig

from eddyline.client.connect import Client
from eddyline.client.transport.topology import Topology
from eddyline.client.watch.events import Records
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Record
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.store_link.grpc import GrpcLink
from eddyline.core.telemetry import names as telemetry
from eddyline.core.transport.channel import open_channel
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc
from tests.support.clients.clients import client_at
from tests.support.cluster.processes import delivery_at, free_address, nats_server, process, serving
from tests.support.store.shards import names_on
from tests.support.telemetry.scrape import scrape, scraped_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.client.watch.watch import Watch

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PATIENCE_S = 200.0
CONNECTED = telemetry.DELIVERY_STORE_CONNECTED
KEPT, LOST = names_on(0, 2, 1)[0], names_on(1, 2, 1)[0]
"""Topics of the store that stays and of the one that is killed; as buckets they have the same names."""


class Stores:
    """Two stores at fixed addresses; each can be killed and started again."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self.addresses = (free_address(), free_address())
        self.setting = ",".join(self.addresses)
        self._directory = directory
        self._stack = stack
        self._running: dict[int, asyncio.subprocess.Process] = {}

    async def start(self, shard: int) -> None:
        """Start one, and wait until it serves."""
        settings = {
            "EDDYLINE_COMMON_STORE_ADDRESSES": self.setting,
            "EDDYLINE_STORE_SHARD_INDEX": str(shard),
            "EDDYLINE_STORE_LISTEN": self.addresses[shard],
            "EDDYLINE_STORE_DATA_DIR": str(self._directory / f"store-{shard}"),
        }
        self._running[shard] = await self._stack.enter_async_context(process("eddyline.store", **settings))
        await serving(self.addresses[shard])

    def suspend(self, shard: int) -> None:
        """It answers nothing any more, its connections stay."""
        self._running[shard].send_signal(signal.SIGSTOP)

    def resume(self, shard: int) -> None:
        """One that hangs goes on."""
        self._running[shard].send_signal(signal.SIGCONT)

    async def kill(self, shard: int) -> None:
        """As kill -9."""
        self._running[shard].send_signal(signal.SIGKILL)
        await self._running[shard].wait()


@asynccontextmanager
async def two_stores(directory: Path) -> AsyncIterator[tuple[Stores, AsyncExitStack]]:
    async with AsyncExitStack() as stack:
        stores = Stores(directory, stack)
        for shard in range(2):
            await stores.start(shard)
        yield stores, stack


async def status_of(address: str) -> cluster_pb2.GetStatusResponse:
    async with open_channel(address, own_connection=True) as channel:
        return await cluster_pb2_grpc.ClusterServiceStub(channel).GetStatus(cluster_pb2.GetStatusRequest())


class Reader:
    """A watch of topics, and what came by topic."""

    def __init__(self, client: Client, *topics: str) -> None:
        self.seen: dict[str, list[bytes | None]] = {topic: [] for topic in topics}
        self._watch: Watch = client.watch(topics, start="earliest", heartbeat_ms=1000)
        self._news = asyncio.Event()

    async def run(self) -> None:
        async with self._watch as events:
            async for event in events:
                if isinstance(event, Records):
                    self.seen[event.topic] += [record.data for record in event.records]
                    self._news.set()

    async def until(self, topic: str, expected: list[bytes]) -> None:
        """Wait until exactly these came."""
        async with asyncio.timeout(PATIENCE_S):
            while self.seen[topic] != expected:
                assert len(self.seen[topic]) <= len(expected), self.seen[topic]
                self._news.clear()
                await self._news.wait()


@pytest.mark.parametrize("how", ["killed", "hangs"])
async def test_delivery_serves_on_what_lives_on_the_store_that_stays(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery, metrics = free_address(), free_address()
    # What roles say of the cluster is what the client knows: a watch that tries again asks for it.
    monkeypatch.setenv("EDDYLINE_COMMON_DELIVERY_ADDRESSES", delivery)
    async with two_stores(tmp_path) as (stores, stack):
        more = {"EDDYLINE_DELIVERY_METRICS_LISTEN": metrics}
        await stack.enter_async_context(delivery_at(delivery, stores.setting, **more))
        topology = Topology(CommonSettings().cluster_id, stores.addresses, (), (delivery,))
        client = await stack.enter_async_context(client_at(topology, random_source=Random(1)))
        sent: dict[str, list[bytes]] = {KEPT: [], LOST: []}

        async def append(topic: str) -> None:
            sent[topic].append(b"%s %d" % (topic.encode(), len(sent[topic])))
            await client.append(topic, [Record(data=sent[topic][-1])])

        for topic in sent:
            await client.create_topic(topic, Kind.LOG)
            await append(topic)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        reader, late = Reader(client, KEPT, LOST), Reader(client, KEPT)
        reading = [tasks.create_task(reader.run())]
        stack.callback(lambda: [task.cancel() for task in reading])
        for topic, expected in sent.items():
            await reader.until(topic, expected)
        assert (await status_of(delivery)).ready

        if how == "killed":
            await stores.kill(1)
            await serving(delivery, "store/1", is_serving=False)
            await serving(delivery)
            status = await status_of(delivery)
            assert (status.ready, status.reason) == (False, "STORE_UNREACHABLE (shard 1)")
            reached = await scraped_until(metrics, lambda seen: not seen.value(CONNECTED, shard="1"))
            assert reached.value(CONNECTED, shard="0") == 1
        else:
            stores.suspend(1)
            stack.callback(stores.resume, 1)
        reading.append(tasks.create_task(late.run()))
        for _ in range(20):
            await append(KEPT)
        await reader.until(KEPT, sent[KEPT])
        await late.until(KEPT, sent[KEPT])
        assert reader.seen[LOST] == sent[LOST]

        if how == "killed":
            await stores.start(1)
        else:
            stores.resume(1)
        await append(LOST)
        await append(KEPT)
        for topic, expected in sent.items():
            await reader.until(topic, expected)
        await serving(delivery, "store")


def sources_file(directory: Path) -> str:
    """A bucket to the topic of its name, for a topic on each store."""
    path = directory / "sources.toml"
    path.write_text(
        "".join(f'[[source]]\nname = "{name}"\nbucket = "{name}"\ntopic = "{name}"\n' for name in (KEPT, LOST))
    )
    return str(path)


async def copied(address: str, topic: str, count: int) -> None:
    """Wait until a topic has so many records, at the store that owns it."""
    async with open_channel(address, own_connection=True) as channel, asyncio.timeout(PATIENCE_S):
        link = GrpcLink(channel)
        while (head := (await link.get_topic(topic)).head_seq) != count:
            assert head < count
            await asyncio.sleep(0.05)


async def test_ingest_copies_on_what_lives_on_the_store_that_stays(tmp_path: Path) -> None:
    ingest, metrics = free_address(), free_address()
    async with two_stores(tmp_path) as (stores, stack):
        url = await stack.enter_async_context(nats_server(tmp_path))
        writer = await nats.connect(url)
        stack.push_async_callback(writer.close)
        settings = KeyValueConfig(bucket="", history=1)
        buckets = {}
        for name in (KEPT, LOST):
            settings.bucket = name
            buckets[name] = await writer.jetstream().create_key_value(settings)
        started = await stack.enter_async_context(
            process(
                "eddyline.ingest",
                EDDYLINE_COMMON_STORE_ADDRESSES=stores.setting,
                EDDYLINE_INGEST_LISTEN=ingest,
                EDDYLINE_INGEST_METRICS_LISTEN=metrics,
                EDDYLINE_INGEST_NATS_URL=url,
                EDDYLINE_INGEST_SOURCES_FILE=sources_file(tmp_path),
                EDDYLINE_INGEST_LEASE_MS="1000",
            )
        )
        assert started.stdout is not None
        line = (await started.stdout.readline()).decode()
        assert line.endswith(f"stores at {', '.join(stores.addresses)}\n"), line

        async def put(name: str, first: int, count: int) -> None:
            for number in range(first, first + count):
                await buckets[name].put(f"k{number}", json.dumps(number).encode())

        for shard, name in enumerate((KEPT, LOST)):
            await put(name, 0, 5)
            await copied(stores.addresses[shard], name, 5)
        await stores.kill(1)
        await serving(ingest, "store/1", is_serving=False)
        await serving(ingest)
        for name in (KEPT, LOST):
            await put(name, 5, 20)
        await copied(stores.addresses[0], KEPT, 25)
        assert "(shard 1)" in (await status_of(ingest)).reason
        assert (await scrape(metrics)).value(telemetry.INGEST_STORE_CONNECTED, shard="0") == 1
        await stores.start(1)
        await copied(stores.addresses[1], LOST, 25)
        await put(LOST, 25, 1)
        await copied(stores.addresses[1], LOST, 26)
        await serving(ingest, "store")
        held = {source.source for source in (await status_of(ingest)).ingest.sources}
        assert held == {KEPT, LOST}


async def test_ingest_that_starts_while_a_store_is_away_copies_what_lives_on_the_other(tmp_path: Path) -> None:
    only = tmp_path / "only.toml"
    only.write_text(f'[[source]]\nname = "{KEPT}"\nbucket = "{KEPT}"\ntopic = "{KEPT}"\n')
    async with two_stores(tmp_path) as (stores, stack):
        url = await stack.enter_async_context(nats_server(tmp_path))
        writer = await nats.connect(url)
        stack.push_async_callback(writer.close)
        bucket = await writer.jetstream().create_key_value(KeyValueConfig(bucket=KEPT, history=1))
        for number in range(2):
            ingest = free_address()
            settings = {
                "EDDYLINE_COMMON_STORE_ADDRESSES": stores.setting,
                "EDDYLINE_INGEST_LISTEN": ingest,
                "EDDYLINE_INGEST_NATS_URL": url,
                "EDDYLINE_INGEST_SOURCES_FILE": str(only),
            }
            async with process("eddyline.ingest", **settings):
                await serving(ingest)
                await bucket.put(f"k{number}", b"v")
                await copied(stores.addresses[0], KEPT, number + 1)
            if not number:
                await stores.kill(1)
