"""The forms of `StoreLink` over the same kind of store: in process, over a real server on loopback, as one of two shards.

Disk, fold and clock are simulated under all, so that nothing but the wire differs, and the test has its hands on all of it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from eddyline.core.runtime.clock import SystemHost
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.server.server import make_server
from eddyline.core.store_link.grpc import GrpcLink
from eddyline.core.store_link.sharded import ShardedLink
from eddyline.core.transport.channel import open_channel
from eddyline.store.__main__ import SERVICES, add_services
from eddyline.store.rpc.shard_handle import ShardHandle
from tests.support.manual_clock import ManualClock
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import sim_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.store.shard.shard import Shard

Form = Literal["local", "grpc", "sharded"]
FORMS: tuple[Form, ...] = ("local", "grpc", "sharded")


@dataclass(frozen=True, slots=True)
class LinkedStore:
    """`link` is the form under test; `door` the store behind it, for what only its server may do."""

    link: StoreLink
    door: Shard
    clock: ManualClock
    fold: SimFold
    disk: FaultyFs


@asynccontextmanager
async def linked_store(
    form: Form, *, fold: SimFold | None = None, topics_max: int = 100, cache_bytes: int = 1 << 20
) -> AsyncIterator[LinkedStore]:
    """A new store behind a link of this form."""
    clock, disk, fold = ManualClock(), FaultyFs(SimFs()), fold or SimFold(0)
    async with AsyncExitStack() as stack:
        door = await stack.enter_async_context(
            sim_store(disk, fold, clock, topics_max=topics_max, cache_bytes=cache_bytes)
        )
        link: StoreLink = door
        if form == "grpc":
            link = await stack.enter_async_context(_served(door, clock))
        elif form == "sharded":
            # all topics are the second shard's, which is numbered as a lone store, so that all forms answer alike
            other = await stack.enter_async_context(sim_store(clock=clock))
            link = ShardedLink((other, door), shard_by_topic=lambda _topic: 1)
        yield LinkedStore(link, door, clock, fold, disk)


@asynccontextmanager
async def _served(door: Shard, clock: ManualClock) -> AsyncIterator[StoreLink]:
    handle = ShardHandle()
    server = make_server("127.0.0.1:0")
    add_services(server, handle, common=CommonSettings(), clock=clock, host=SystemHost())
    address = await server.start(*SERVICES)
    handle.open(door)
    try:
        async with open_channel(address, own_connection=True) as channel:
            yield GrpcLink(channel)
    finally:
        await server.stop(0)
