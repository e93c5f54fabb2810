"""A simulated delivery role that dies and restarts now and then; its streams break then, or are cut."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Protocol

from eddyline.core.errors import StoreUnreachable
from eddyline.core.runtime.clock import sleep, wait_event
from eddyline.delivery.config import DeliverySettings
from eddyline.delivery.feed.dispatcher import SEND_BYTES_MAX
from eddyline.delivery.role import DeliveryRole
from tests.support.sim.wire import cut_by

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from random import Random

    from eddyline.core.store_link.protocol import StoreLink
    from tests.support.manual_clock import ManualClock

SMALL_RING_BYTES = 20_000


class DeliveryHost(Protocol):
    """Clock, randomness and quiet phase of the simulation in which a delivery role runs."""

    random: Random
    clock: ManualClock


class Delivery:
    """A delivery role that dies now and then, unless it is `calm`; `role` is None in between. Some are under pressure:
    frames are joined."""

    def __init__(self, world: DeliveryHost, link: StoreLink) -> None:
        self._world, self._link = world, link
        self._gone = asyncio.Event()
        self.calm = False
        self.role: DeliveryRole | None = None

    async def live(self) -> None:
        """Run one role after another, until cancelled. Some have small rings, so that subscribers fall back to the log."""
        random = self._world.random
        while True:
            size = random.choice((0, SMALL_RING_BYTES, 16 << 20))
            settings = DeliverySettings(buffer_bytes=size, topic_buffer_bytes=size)
            role = DeliveryRole(self._link, clock=self._world.clock, random=random, settings=settings)
            role.stats.queued_bytes = random.choice((0, SEND_BYTES_MAX // 2, SEND_BYTES_MAX))
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(role.run())
                self.role, self._gone = role, asyncio.Event()
                await sleep(self._world.clock, random.uniform(2, 15))
                while self.calm:
                    await sleep(self._world.clock, 1)
                self.role = None
                self._gone.set()
                running.cancel()
            await sleep(self._world.clock, random.uniform(0, 1))

    async def stream(
        self, stream: Callable[[DeliveryRole], Coroutine[object, object, None]], *, cut_s: float = math.inf
    ) -> None:
        """Run one stream, if there is a role, until the role dies, or for `cut_s`.

        Raises:
            the errors of `stream`, or StoreUnreachable.
        """
        if self.role is not None:
            await cut_by(self._break_off(self._gone, cut_s), stream(self.role))

    async def _break_off(self, gone: asyncio.Event, cut_s: float) -> None:
        if math.isinf(cut_s):
            await gone.wait()
        elif not await wait_event(self._world.clock, gone, cut_s):
            raise StoreUnreachable("the stream was cut")
        raise StoreUnreachable("the role is gone")
