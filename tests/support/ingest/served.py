"""Ingest's services as its users reach them: a real nats-server, a real store process, the role's parts, gRPC, a client."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from nats.js.api import KeyValueConfig
from nats.js.errors import NotFoundError

from eddyline.client.connect import Client
from eddyline.client.transport.topology import Channels, Topology
from eddyline.core.auth.caller_channel import CallerAccess
from eddyline.core.forwarding.shards import ShardForwarder
from eddyline.core.runtime.clock import SystemClock, SystemHost
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.server.server import make_server
from eddyline.core.store_link.grpc import GrpcLink
from eddyline.ingest.config import IngestSettings
from eddyline.ingest.kv.writer import WriteTarget
from eddyline.ingest.role import SERVICES, add_services, gates_of
from tests.support.cluster.processes import free_address
from tests.support.hang import HANG_S
from tests.support.ingest.kit import HEARTBEAT_MS, LEASE_MS, nats_writer, running_role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.aio.client import Client as NatsClient
    from nats.js.kv import KeyValue

    from eddyline.core.auth.role import RoleAccess
    from eddyline.ingest.role import IngestRole
    from tests.support.ingest.kit import BucketKit

PATIENCE_S = 10.0
LOOK_S = 0.02


def target(
    bucket: str, key: bytes = b"k", *, wait: bool = False, source: str = "", s: float = PATIENCE_S
) -> WriteTarget:
    """Parameters of a test's write."""
    return WriteTarget(bucket=bucket, key=key, timeout_s=s, wait=wait, source=source)


async def gone(kit: BucketKit, key: str) -> None:
    """Wait until a key of the bucket has expired, by the server's own clock."""
    async with asyncio.timeout(HANG_S):
        while True:
            try:
                message = await kit.js.get_last_msg(f"KV_{kit.bucket}", f"$KV.{kit.bucket}.{key}")
            except NotFoundError:
                return
            if "Nats-Marker-Reason" in (message.headers or {}):
                return
            await asyncio.sleep(LOOK_S)


@dataclass(frozen=True, slots=True)
class ServedIngest:
    """An ingest that serves over gRPC, its role, a client of it and of the store, and a bucket's name with a client of
    NATS."""

    address: str
    role: IngestRole
    client: Client
    bucket: str
    nats: NatsClient

    async def make_bucket(self) -> KeyValue:
        """Create the bucket."""
        return await self.nats.jetstream().create_key_value(KeyValueConfig(bucket=self.bucket, history=64))

    async def copies(self, name: str = "", *, key_prefixes: tuple[bytes, ...] = ()) -> None:
        """Create a source of the bucket, and wait until it is LIVE."""
        source = name or self.bucket
        await self.client.sources.create(source, bucket=self.bucket, key_prefixes=key_prefixes)
        await self.is_status("LIVE", source)

    async def is_status(self, status: str, source: str = "") -> None:
        """Wait until the store has this status of a source."""
        async with asyncio.timeout(HANG_S):
            # The source is another task's, behind two processes: there is no event to wait for.
            while (await self.client.sources.get(source or self.bucket)).status != status:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def served_ingest(
    url: str, store: str, bucket: str, *, access: RoleAccess | None = None, caller: CallerAccess | None = None
) -> AsyncIterator[ServedIngest]:
    """Run an ingest of the store at an address, from start to stop. `access` None = no keys; `caller` = credentials of its
    client."""
    common = CommonSettings(store_addresses=(store,), ingest_addresses=(free_address(),))
    clock, host = SystemClock(), SystemHost()
    link_access = access.caller if access is not None else CallerAccess()
    shards = ShardForwarder((store,), caller=link_access, cluster_id=common.cluster_id)
    async with nats_writer(url) as writer, link_access.open_channel(store) as channel, shards:
        link = GrpcLink(channel, cluster_id=common.cluster_id)
        server = make_server(common.ingest_addresses[0], interceptors=gates_of(shards), access=access)
        settings = IngestSettings(nats_url=url, holder=bucket, lease_ms=LEASE_MS, heartbeat_ms=HEARTBEAT_MS)
        channels = Channels(caller)
        try:
            async with running_role(link, settings, common=common) as role:
                add_services(server, role, link=link, common=common, clock=clock, host=host)
                address = await server.start(*SERVICES)
                client = Client(
                    Topology(common.cluster_id, (store,), (address,), ()),
                    channels=channels,
                    clock=clock,
                    random_source=Random(1),
                )
                await role.connection.wait_connected()
                yield ServedIngest(address, role, client, bucket, writer)
        finally:
            await channels.close()
            await server.stop(0)
