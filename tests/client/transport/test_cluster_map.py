"""Which delivery a watch asks, where others are looked for, and that a cluster that is down costs nothing."""

from __future__ import annotations

import gc
import random
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.client.connect import Client, connect
from eddyline.client.transport.cluster_map import ASK_EVERY_S, ClusterMap, Deliveries
from eddyline.client.transport.topology import Channels, Topology
from eddyline.client.watch.events import Records
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import SystemClock, SystemHost
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.server.cluster_service import ClusterService, ReportedStatus
from eddyline.core.server.server import make_server
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc
from tests.support.clients.clients import NoJitter, client_at
from tests.support.clients.clients import client_of as store_client_of
from tests.support.cluster.process_figures import resident_bytes
from tests.support.cluster.processes import free_address
from tests.support.delivery.scripted_roles import ScriptedDelivery, WatchScript, rows_frame, scripted_server
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager


WARM_TRIES, TRIES = 1_000, 4_000
ROUNDS_MAX = 3
GROWTH_BYTES_MAX = 3 << 19
"""As many streams that cannot be opened take 2.1 MB for good; the allocator gives and takes 1 MB."""


@asynccontextmanager
async def naming(*deliveries: str, cluster_id: str = "test") -> AsyncIterator[str]:
    """A role that names these deliveries; its address."""
    common = CommonSettings(cluster_id=cluster_id, delivery_addresses=deliveries)
    rpc = ClusterService(
        cluster_pb2.ROLE_STORE,
        version="1",
        common=common,
        status=lambda: ReportedStatus(True, "", None),
        clock=SystemClock(),
        host=SystemHost(),
    )
    server = make_server("127.0.0.1:0", new_id=lambda: "the-id")
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(rpc, server.grpc)
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


def client_of(
    *deliveries: str, seed: str = "", clock: ManualClock | None = None, random_source: random.Random | None = None
) -> AbstractAsyncContextManager[Client]:
    topology, seeds = Topology("test", (), (), deliveries), (seed,) if seed else ()
    return client_at(topology, clock=clock, random_source=random_source, seeds=seeds)


async def test_others_are_looked_for_when_none_answers() -> None:
    delivery = ScriptedDelivery([WatchScript([rows_frame("a", 1)])])
    async with (
        scripted_server(delivery=delivery) as alive,
        naming(alive) as seed,
        client_of(free_address(), free_address(), seed=seed) as client,
        client.watch("a", start="earliest") as events,
    ):
        event = await anext(events)
        assert isinstance(event, Records)
        assert client.topology.deliveries == (alive,)


async def test_each_try_asks_the_next_one() -> None:
    deliveries = [ScriptedDelivery([WatchScript([rows_frame("a", seq)], "end")] * 9) for seq in (1, 2, 3)]
    async with AsyncExitStack() as servers:
        addresses = [await servers.enter_async_context(scripted_server(delivery=found)) for found in deliveries]
        async with client_of(*addresses) as client, client.watch("a", start="earliest") as events:
            for _ in range(6):
                await anext(events)
    assert [len(found.requests) for found in deliveries] == [2, 2, 2]


async def test_many_watches_spread() -> None:
    cluster = ClusterMap(Topology("test", (), (), ("a", "b", "c", "d")), channels=Channels(), clock=ManualClock())
    chance = random.Random(1)
    turns = [Deliveries(cluster, random_source=chance)._turn for _ in range(400)]
    assert all(70 < turns.count(turn) < 130 for turn in range(4))


async def test_an_answer_of_another_cluster_is_passed_over() -> None:
    async with naming("127.0.0.1:1", cluster_id="other") as seed, client_of("127.0.0.1:2", seed=seed) as client:
        await client._cluster.ask_all()
        assert client.topology.deliveries == ("127.0.0.1:2",)


async def test_a_delivery_that_became_another_clusters_is_left() -> None:
    delivery = ScriptedDelivery([WatchScript([rows_frame("a", 1)], "end"), WatchScript([rows_frame("a", 2)])])
    async with (
        scripted_server(delivery=delivery) as alive,
        naming("127.0.0.1:1", cluster_id="other") as stranger,
        client_of(alive, stranger) as client,
        client.watch("a", start="earliest") as events,
    ):
        await anext(events)
        assert isinstance(await anext(events), Records)
    assert [request.topics[0].cursor.seq for request in delivery.requests] == [0, 1]


async def test_topology_is_requested_at_most_once_an_interval() -> None:
    clock = ManualClock()
    async with naming("127.0.0.1:3") as first, client_of("127.0.0.1:2", seed=first, clock=clock) as client:
        await client._cluster.ask_all()
        assert client.topology.deliveries == ("127.0.0.1:3",)
        other = client._cluster.topology = Topology("test", (), (), ("127.0.0.1:4",))
        await client._cluster.ask_all()
        assert client.topology is other
        clock.advance(ASK_EVERY_S)
        client._cluster.topology = Topology("test", (), (), ())
        await client._cluster.ask_all()
        assert client.topology.deliveries == ("127.0.0.1:3",)


async def test_channels_to_dropped_addresses_close_unless_connected() -> None:
    delivery = ScriptedDelivery([WatchScript([rows_frame("a", 1)])])
    channels = Channels()
    async with scripted_server(delivery=delivery) as alive:
        dead = channels.to("127.0.0.1:9")
        await channels.to(alive).channel_ready()
        await channels.drop_all_but({"127.0.0.1:10"})
        assert channels.to(alive).get_state() is grpc.ChannelConnectivity.READY
        assert channels.to("127.0.0.1:9") is not dead
    await channels.close()


async def test_a_client_without_the_role_it_was_given_asks_it_again() -> None:
    delivery = ScriptedDelivery([WatchScript([rows_frame("a", 1)])])
    async with (
        scripted_server(delivery=delivery) as alive,
        naming(alive, cluster_id="local") as seed,
        connect(seed, random_source=NoJitter(1)) as client,
    ):
        client._cluster.topology = Topology("local", (), (), (free_address(),))
        async with client.watch("a", start="earliest") as events:
            assert isinstance(await anext(events), Records)


class Enough(Exception):
    """So many tries."""


class Tries(NoJitter):
    """Counts tries, each of which draws its wait, looks at the memory after each round of them, and ends with the first
    that took none."""

    def __init__(self) -> None:
        super().__init__(1)
        self.count = 0
        self.sizes: list[tuple[int, int]] = []

    def uniform(self, a: float, b: float) -> float:
        self.count += 1
        rounds, into = divmod(self.count - WARM_TRIES, TRIES)
        if rounds >= 0 and not into:
            gc.collect()
            self.sizes.append((resident_bytes(), len(gc.get_objects())))
            if rounds == ROUNDS_MAX or (rounds and self._grew() < GROWTH_BYTES_MAX):
                raise Enough
        return super().uniform(a, b)

    def check(self) -> None:
        assert self._grew() < GROWTH_BYTES_MAX
        (_, objects_before), (_, objects_after) = self.sizes[-2:]
        assert objects_after - objects_before < TRIES / 20

    def _grew(self) -> int:
        """In the last round. Earlier work in this process may change memory in one round; a leak grows in each."""
        (before, _), (after, _) = self.sizes[-2:]
        return after - before


@pytest.mark.parametrize("count", [1, 2])
async def test_a_cluster_that_is_down_costs_no_memory_however_often_it_is_tried(count: int) -> None:
    tries, addresses = Tries(), [free_address() for _ in range(count)]
    async with (
        client_of(*addresses, seed=addresses[0], random_source=tries) as client,
        client.watch("a") as events,
    ):
        with pytest.raises(Enough):
            await anext(events)
        assert len(client._channels._open) == count
    tries.check()


async def test_a_store_that_is_down_costs_its_followers_no_memory() -> None:
    tries = Tries()
    async with (
        store_client_of(free_address(), random_source=tries) as client,
        aclosing(client.read("a", follow=True)) as records,
    ):
        with pytest.raises(Enough):
            await anext(records)
    tries.check()


def test_half_an_hour_without_a_cluster_is_not_more_tries_than_were_measured() -> None:
    backoff, passed_s, tries = Backoff(random.Random(1), cap_s=2.0), 0.0, 0
    while passed_s < 1_800:
        passed_s += backoff.next_delay_s()
        tries += 1
    assert 1_000 < tries < TRIES
