"""Access at ingest, with a store that checks it too: sources by prefix, forwarded callers, writes into buckets."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.client.connect import Client
from eddyline.client.transport.topology import Topology
from eddyline.core.errors import NotKv, PermissionDenied, TopicNotFound, Unauthenticated
from eddyline.core.model.topic import Kind
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc
from tests.support.access import Keys, secret_of
from tests.support.clients.clients import client_at
from tests.support.cluster.processes import store_process
from tests.support.ingest.served import served_ingest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from eddyline.core.auth.caller_channel import CallerAccess
    from tests.support.nats.server import NatsServer


class Served:
    """An ingest and its store."""

    def __init__(self, store: str, ingest: str) -> None:
        self._topology = Topology("local", (store,), (ingest,), ())

    def client(self, access: CallerAccess | None) -> AbstractAsyncContextManager[Client]:
        """A client with this key."""
        return client_at(self._topology, access=access)


@asynccontextmanager
async def served_with(url: str, folder: Path, keys: Keys) -> AsyncIterator[Served]:
    keys.add("root", "read", "write", "delete", "admin")
    keys.add("ingest", "role")
    own = key_file(folder / "role.key")
    async with (
        store_process(folder / "store", EDDYLINE_COMMON_KEYS_FILE=str(keys.path)) as (_, store),
        served_ingest(url, store, "b", access=keys.access(key_file=own)) as ingest,
    ):
        yield Served(store, ingest.address)


def key_file(path: Path) -> str:
    path.write_text(secret_of("ingest"), encoding="utf-8")
    return str(path)


async def test_a_key_with_prefixes_has_its_sources_alone(nats_server: NatsServer, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    mine = keys.add("mine", "read", "admin", prefixes=("mine",))
    async with served_with(nats_server.url, tmp_path, keys) as role:
        async with role.client(keys.add("root", "read", "write", "delete", "admin")) as client:
            await client.sources.create("mine.a", topic="mine.t", bucket="mine-b")
            await client.sources.create("mine.b", topic="theirs.t", bucket="mine-c")
            await client.sources.create("mine.c", topic="mine.u", bucket="theirs-b")
            await client.sources.create("theirs.a", topic="theirs.u", bucket="theirs-c")
        async with role.client(mine) as client:
            assert [source.definition.name for source in await client.sources.list()] == ["mine.a"]
            assert (await client.sources.get("mine.a")).definition.topic == "mine.t"
            for name in ("mine.b", "mine.c", "theirs.a", "theirs.none"):
                with pytest.raises(PermissionDenied):
                    await client.sources.get(name)
                with pytest.raises(PermissionDenied):
                    await client.sources.pause(name)
                with pytest.raises(PermissionDenied):
                    await client.sources.delete(name)
            for topic, bucket, letters in (
                ("theirs.x", "mine-x", ""),
                ("mine.x", "theirs-x", ""),
                ("mine.x", "mine-x", "theirs.letters"),
            ):
                with pytest.raises(PermissionDenied):
                    await client.sources.create("mine.x", topic=topic, bucket=bucket, dead_letter_topic=letters)
            await client.sources.pause("mine.a")
            await client.sources.delete("mine.a")
            ingest = client.channel_to(client.topology.ingests[0])
            status = await cluster_pb2_grpc.ClusterServiceStub(ingest).GetStatus(cluster_pb2.GetStatusRequest())
            assert not {source.source for source in status.ingest.sources} - {"mine.a", "mine.b", "mine.c"}


async def test_what_is_refused_leaves_nothing_though_its_caller_may_not_delete(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    keys = Keys(tmp_path)
    admin = keys.add("admin", "admin")
    async with served_with(nats_server.url, tmp_path, keys) as role, role.client(admin) as client:
        await client.create_topic("log", Kind.LOG)
        with pytest.raises(NotKv):
            await client.sources.create("s", topic="log", bucket="some-bucket", dead_letter_topic="letters")
        with pytest.raises(TopicNotFound):
            await client.get_topic("letters")


async def test_writes_into_buckets_need_write_or_delete_and_the_bucket(nats_server: NatsServer, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    writer = keys.add("writer", "write", prefixes=("mine",))
    async with served_with(nats_server.url, tmp_path, keys) as role:
        async with role.client(writer) as client:
            for bucket in ("theirs", "other"):
                with pytest.raises(PermissionDenied):
                    await client.kv.put(bucket, b"k", b"v")
            with pytest.raises(PermissionDenied, match="delete"):
                await client.kv.delete("mine", b"k")
        async with role.client(None) as client:
            with pytest.raises(Unauthenticated):
                await client.kv.put("mine", b"k", b"v")
