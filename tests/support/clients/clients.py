"""Clients of given addresses, which by default never wait between tries."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from eddyline.client.append.shared_streams import shared_streams
from eddyline.client.connect import Client
from eddyline.client.transport.topology import Channels, Topology
from eddyline.core.runtime.clock import SystemClock
from tests.support.delivery.scripted_roles import ScriptedDelivery, scripted_server
from tests.support.store.scripted_shard import scripted_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.core.runtime.clock import Clock
    from tests.support.delivery.scripted_roles import WatchScript
    from tests.support.store.scripted_shard import ScriptedShard


class NoJitter(random.Random):
    """Backoff without waiting: tests have no time."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0


@asynccontextmanager
async def client_of(
    address: str, *, clock: Clock | None = None, random_source: random.Random | None = None
) -> AsyncIterator[Client]:
    """A client of a store at this address."""
    async with client_at(Topology("test", (address,), (), ()), clock=clock, random_source=random_source) as client:
        yield client


@asynccontextmanager
async def client_at(
    topology: Topology,
    *,
    access: CallerAccess | None = None,
    clock: Clock | None = None,
    random_source: random.Random | None = None,
    seeds: tuple[str, ...] = (),
) -> AsyncIterator[Client]:
    """A client of a topology's roles. None = no credentials, the system's clock, no wait between tries."""
    channels = Channels(access)
    system_clock = clock if clock is not None else SystemClock()
    async with shared_streams(system_clock) as streams:
        try:
            yield Client(
                topology,
                channels=channels,
                clock=system_clock,
                random_source=random_source if random_source is not None else NoJitter(1),
                seeds=seeds,
                streams=streams,
            )
        finally:
            await channels.close()


@asynccontextmanager
async def watching(*scripts: WatchScript, clock: Clock | None = None) -> AsyncIterator[tuple[Client, ScriptedDelivery]]:
    """A client of a delivery whose watches follow scripts, and that delivery."""
    delivery = ScriptedDelivery(list(scripts))
    async with (
        scripted_server(delivery=delivery) as address,
        client_at(Topology("test", (address,), (), (address,)), clock=clock) as client,
    ):
        yield client, delivery


@asynccontextmanager
async def client_of_a_door(door: ScriptedShard | None) -> AsyncIterator[Client]:
    """A client of a store that is this door; None = of one that recovers."""
    async with scripted_store(door) as store, client_of(store.address) as client:
        yield client
