"""Subscribers that come and go by the thousand leave nothing in a delivery role: no memory, no stream, no listener.

EDDYLINE_TEST_SOAK = cycles of subscribing and cancelling, by default 3 000; 50 000 take some minutes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
from contextlib import aclosing
from random import Random
from typing import Final

import pytest

from eddyline.delivery.config import DeliverySettings
from eddyline.delivery.role import DeliveryRole
from eddyline.delivery.watch.request import StartPoint, TopicRequest, WatchRequest
from tests.support.delivery.slots import held_count, waiting_count
from tests.support.manual_clock import ManualClock
from tests.support.store.simulated import append, kv_topic, log_topic, puts, rows, sim_store

pytestmark = pytest.mark.integration

CYCLES: Final = int(os.environ.get("EDDYLINE_TEST_SOAK", "3000"))
GROWTH_BYTES_A_CYCLE_MAX: Final = 20
"""A leaked subscription is some hundreds of bytes at least."""


async def test_subscribers_that_come_and_go_leave_nothing() -> None:
    clock, random = ManualClock(), Random(1)
    async with sim_store(clock=clock) as store, asyncio.TaskGroup() as tasks:
        await log_topic(store, "log")
        await kv_topic(store, "kv")
        await append(store, "kv", puts(*((f"k{i}", "v") for i in range(20))))
        await append(store, "log", rows(*"abcdefgh"))
        settings = DeliverySettings(buffer_bytes=100_000, topic_buffer_bytes=50_000)
        role = DeliveryRole(store, clock=clock, random=random, settings=settings)
        running = tasks.create_task(role.run())
        await role.tails.up.wait()
        for number in range(40):
            await append(store, "kv", puts((f"k{number}", "w")))
        await _cycles(CYCLES // 4, role, clock, random)
        tracemalloc.start()
        before = _held_bytes()
        await _cycles(CYCLES - CYCLES // 4, role, clock, random)
        grown = _held_bytes() - before
        tracemalloc.stop()
        for _ in range(1_000):
            if not held_count(role.slots):
                break
            await asyncio.sleep(0)  # the last snapshot's scan is being given back
        assert role.stats.watch_count == 0
        assert (held_count(role.slots), waiting_count(role.slots)) == (0, 0)
        running.cancel()
    assert grown < 100_000 + GROWTH_BYTES_A_CYCLE_MAX * CYCLES, f"{grown} bytes more"


async def _cycles(count: int, role: DeliveryRole, clock: ManualClock, random: Random) -> None:
    """Subscribers, one after another, each cancelled after some frames."""
    for number in range(count):
        point = random.choice((StartPoint.SNAPSHOT, StartPoint.EARLIEST, StartPoint.TAIL))
        prefixes = random.choice(((), (b"k1",), (b"k2", b"k3")))
        wanted = (TopicRequest("kv", point, prefixes), TopicRequest("log", StartPoint.EARLIEST))
        async with (
            role.watches.open(WatchRequest(wanted, columns=random.random() < 0.5)) as subscriber,
            aclosing(subscriber.frames()) as frames,
        ):
            for _ in range(random.randrange(3)):
                await anext(frames)
        if number % 5 == 0:
            clock.advance(0.5)
        await asyncio.sleep(0)


def _held_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
