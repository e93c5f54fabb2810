"""The process's bound: above it appends are refused and streams of appends ended, below it they are taken again."""

from __future__ import annotations

import pytest

from eddyline.core.errors import MemoryFull
from eddyline.store.limits.memory_guard import PROCESS_BYTES, MemoryGuard
from eddyline.store.write.admission import AdmissionControl
from tests.support.manual_clock import ManualClock
from tests.support.sim.worker import InlineWorker
from tests.support.store.simulated import append, log_topic, rows, sim_store

BUDGET = 1 << 20
BOUND = BUDGET + PROCESS_BYTES


class SeenMemory:
    """A process of any size."""

    def __init__(self) -> None:
        self.bytes = 0
        self.given_back = 0

    def resident_bytes(self) -> int:
        return self.bytes

    def give_back(self) -> None:
        self.given_back += 1


class Watched:
    """A guard and what it does."""

    def __init__(self) -> None:
        self.memory, self.shed = SeenMemory(), list[bool]()
        self.gate = AdmissionControl(topics_max=1, unsegmented_bytes_max=1, memory_bytes_max=1)
        self.guard = MemoryGuard(
            memory=self.memory,
            worker=InlineWorker(),
            gate=self.gate,
            clock=ManualClock(),
            memory_bytes=BUDGET,
            shed=self.shed.append,
        )

    async def at(self, resident_bytes: int) -> bool:
        self.memory.bytes = resident_bytes
        await self.guard.poll()
        return self.gate.memory_is_full


async def test_the_gate_is_shut_above_the_bound_and_opens_below_it() -> None:
    watched = Watched()
    assert not await watched.at(BOUND)
    assert watched.shed == []
    assert await watched.at(BOUND + 1)
    assert await watched.at(BOUND + 1)
    assert watched.shed == [True, True]
    assert not await watched.at(BOUND)
    assert watched.shed == [True, True, False]


async def test_memory_is_given_back_at_once_and_not_at_every_look() -> None:
    watched = Watched()
    for _ in range(5):
        await watched.at(BOUND + 1)
    assert watched.memory.given_back == 1


async def test_appends_are_refused_while_memory_is_full() -> None:
    async with sim_store() as link:
        await log_topic(link)
        link._engine.gate.memory_is_full = True
        with pytest.raises(MemoryFull):
            await append(link, "log", rows("a"))
        link._engine.gate.memory_is_full = False
        await append(link, "log", rows("a"))
