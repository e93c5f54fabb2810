"""Clients of one address, which every role is at, and that never wait between tries."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from eddyline.client.connect import Client
from eddyline.client.transport.topology import Channels, Topology
from eddyline.core.runtime.clock import SystemClock
from tests.support.store.scripted_shard import scripted_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.runtime.clock import Clock
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
    channels = Channels()
    try:
        yield Client(
            Topology("test", (address,), (), ()),
            channels=channels,
            clock=clock if clock is not None else SystemClock(),
            random_source=random_source if random_source is not None else NoJitter(),
        )
    finally:
        await channels.close()


@asynccontextmanager
async def client_of_a_door(door: ScriptedShard | None) -> AsyncIterator[Client]:
    """A client of a store that is this door; None = of one that recovers."""
    async with scripted_store(door) as store, client_of(store.address) as client:
        yield client
