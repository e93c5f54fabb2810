"""Roles on our own wire behind nginx (`grpc_pass`) and Envoy: calls, streams both ways, large messages, and restarts.

A proxy that is not on this machine skips its tests; `make test-integration` installs both.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest

from eddyline.client.connect import connect
from eddyline.client.watch.events import Records
from eddyline.core.errors import TopicNotFound
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Record
from tests.support.certificates import Authority, Files
from tests.support.cluster.processes import delivery_at, free_address, process, serving, tls_of
from tests.support.hang import HANG_S
from tests.support.wire.client import until
from tests.support.wire.proxies import find, proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.client.connect import Client
    from eddyline.client.watch.watch import Watch

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

KINDS = ("nginx", "envoy")
LARGE_BYTES = 20 << 20
IDLE_S = 12.0
"""Longer than a role waits without a byte before it pings (10 s), and than our client's heartbeats come."""
ROUNDS = 2


@dataclass
class Proxied:
    """A store and a delivery, each known to clients by the address of the proxy alone."""

    folder: Path
    store: str
    delivery: str
    settings: dict[str, str]
    client_store: str

    @asynccontextmanager
    async def running_store(self) -> AsyncIterator[None]:
        """A store at its address."""
        own = {"EDDYLINE_STORE_LISTEN": self.store, "EDDYLINE_STORE_DATA_DIR": str(self.folder / "data")}
        settings = {"EDDYLINE_COMMON_STORE_ADDRESSES": self.store, **own, **self.settings}
        async with process("eddyline.store", **settings):
            await serving(self.store, tls=tls_of(settings))
            yield

    @asynccontextmanager
    async def running_delivery(self) -> AsyncIterator[None]:
        """A delivery at its address."""
        async with delivery_at(self.delivery, self.store, **self.settings):
            yield


@asynccontextmanager
async def proxied(folder: Path, kind: str, *, tls: bool) -> AsyncIterator[Proxied]:
    find(kind)
    store, delivery, client_store, client_delivery = (free_address() for _ in range(4))
    settings = {
        "EDDYLINE_COMMON_WIRE": "own",
        "EDDYLINE_COMMON_DELIVERY_ADDRESSES": delivery,
        "EDDYLINE_COMMON_STORE_ADVERTISED_ADDRESSES": client_store,
        "EDDYLINE_COMMON_DELIVERY_ADVERTISED_ADDRESSES": client_delivery,
    }
    if tls:
        settings |= Files(folder / "tls", Authority(folder / "authority")).environment(mutual=False)
    routes = {client_store: store, client_delivery: delivery}
    async with proxy(kind, folder, routes, tls=tls):
        yield Proxied(folder, store, delivery, settings, client_store)


async def read_seqs(watch: Watch, count: int) -> list[int]:
    """The seqs of the next records."""
    seqs: list[int] = []
    async with asyncio.timeout(HANG_S):
        async for event in watch:
            if isinstance(event, Records):
                seqs += [record.seq for record in event.records]
            if len(seqs) >= count:
                break
    return seqs


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("kind", KINDS)
async def test_calls_and_streams_pass(tmp_path: Path, kind: str, tls: bool) -> None:
    async with (
        proxied(tmp_path, kind, tls=tls) as scene,
        scene.running_store(),
        scene.running_delivery(),
        connect(scene.client_store) as client,
    ):
        assert client.topology.stores == (scene.client_store,)
        await client.create_topic("log", Kind.LOG)
        watch = client.watch("log", start="earliest")
        await check_unary(client)
        await check_stream(client)
        assert await read_seqs(watch, 701) == list(range(1, 702))
        await asyncio.sleep(IDLE_S)
        await client.append("log", [Record(data=b"after a pause")])
        assert await read_seqs(watch, 1) == [702]
        assert watch.resume_count == 0
        await watch.aclose()


async def check_unary(client: Client) -> None:
    """Parallel calls, an error with its details, and a message of 20 MiB each way."""
    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(client.append("log", [Record(data=b"%d" % number)]))
    with pytest.raises(TopicNotFound) as refused:
        await client.get_topic("none")
    assert refused.value.metadata["topic"] == "none"
    large = [Record(data=bytes([number]) * (1 << 20)) for number in range(LARGE_BYTES >> 20)]
    kept = await client.append("log", [*large, *[Record(data=b"x")] * (501 - len(large))])
    read = [item async for item in client.read("log", after=kept.first_seq - 1, limit=len(large))]
    assert [record.data for record in read if isinstance(record, Record)] == [record.data for record in large]


async def check_stream(client: Client) -> None:
    """Appends and acknowledgements both ways on one call that stays open."""
    async with client.append_stream("log") as stream:
        waiting = [await stream.append([Record(data=b"s")], idempotency_key=f"s{number}") for number in range(100)]
        assert [(await one).last_seq for one in waiting] == list(range(602, 702))


@pytest.mark.parametrize("kind", KINDS)
async def test_restarts_lose_nothing(tmp_path: Path, kind: str) -> None:
    """Each role is stopped with SIGTERM in turn, so it drains, while calls and a watch run through the proxy."""
    async with proxied(tmp_path, kind, tls=False) as scene, AsyncExitStack() as stack:
        stores, deliveries = AsyncExitStack(), AsyncExitStack()
        stack.push_async_callback(stores.aclose)
        stack.push_async_callback(deliveries.aclose)
        await stores.enter_async_context(scene.running_store())
        await deliveries.enter_async_context(scene.running_delivery())
        client = await stack.enter_async_context(connect(scene.client_store))
        await client.create_topic("log", Kind.LOG)
        seqs: list[int] = []
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            writer = group.create_task(write(client, stop))
            keeping = group.create_task(keep(client.watch("log", start="earliest", heartbeat_ms=1_000), seqs))
            for _ in range(ROUNDS):
                for role, run in ((deliveries, scene.running_delivery), (stores, scene.running_store)):
                    before = len(seqs)
                    await role.aclose()
                    await role.enter_async_context(run())
                    await until(partial(has_more, seqs, before + 20))
            stop.set()
            last = await writer
            await until(partial(has_more, seqs, last))
            keeping.cancel()
        assert seqs == list(range(1, last + 1))


def has_more(seqs: list[int], count: int) -> bool:
    return len(seqs) >= count


async def write(client: Client, stop: asyncio.Event) -> int:
    """Append one record after another, each until it is acknowledged; the last seq."""
    number = last = 0
    while not stop.is_set():
        last = (await client.append("log", [Record(data=b"x")], idempotency_key=f"k{number}")).last_seq
        number += 1
    return last


async def keep(watch: Watch, seqs: list[int]) -> None:
    """Note the seqs of all records until cancelled."""
    async with watch as events:
        async for event in events:
            if isinstance(event, Records):
                seqs += [record.seq for record in event.records]
