"""Slots of split reads: bounded streams, bounded waiting, order."""

from __future__ import annotations

import asyncio

import pytest

from eddyline.core.errors import TooManyScans
from eddyline.store.splits.slots import STREAMS_AT_ONCE, WAIT_S_MAX, WAITING_MAX, SplitSlots
from tests.support.manual_clock import ManualClock, settle


class Streams:
    """Calls that hold a slot until `end`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.turns = SplitSlots(self.clock)
        self.served: list[int] = []
        self.refused: list[int] = []
        self.ends: dict[int, asyncio.Event] = {}

    async def stream(self, number: int) -> None:
        """One call."""
        end = self.ends[number] = asyncio.Event()
        try:
            async with self.turns.stream():
                self.served.append(number)
                await end.wait()
        except TooManyScans as error:
            assert error.metadata["retryAfterMs"]
            self.refused.append(number)


async def test_few_streams_are_served_and_the_others_follow_in_order() -> None:
    streams = Streams()
    count = STREAMS_AT_ONCE + 3
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(streams.stream(number))
        await settle()
        assert (streams.served, streams.turns.waiting) == (list(range(STREAMS_AT_ONCE)), 3)
        for number in range(count):
            streams.ends[number].set()
            await settle()
    assert streams.served == list(range(count))
    assert (streams.turns.served, streams.turns.waiting) == (0, 0)


async def test_streams_above_the_waiting_bound_are_refused_at_once() -> None:
    streams = Streams()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(streams.stream(number)) for number in range(STREAMS_AT_ONCE + WAITING_MAX + 2)]
        await settle()
        assert streams.refused == [STREAMS_AT_ONCE + WAITING_MAX, STREAMS_AT_ONCE + WAITING_MAX + 1]
        for task in running:
            task.cancel()
    assert (streams.turns.served, streams.turns.waiting) == (0, 0)


async def test_waits_are_bounded_in_time() -> None:
    streams = Streams()
    async with asyncio.TaskGroup() as tasks:
        for number in range(STREAMS_AT_ONCE + 1):
            tasks.create_task(streams.stream(number))
        await settle()
        await streams.clock.pass_time(WAIT_S_MAX)
        assert (streams.refused, streams.turns.waiting) == ([STREAMS_AT_ONCE], 0)
        for end in streams.ends.values():
            end.set()
    assert streams.turns.served == 0


@pytest.mark.parametrize("is_told", [False, True])
async def test_stream_cancelled_while_it_waits_takes_no_slot(is_told: bool) -> None:
    """Also if its slot became free at that moment."""
    streams = Streams()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(streams.stream(number)) for number in range(STREAMS_AT_ONCE + 2)]
        await settle()
        if is_told:
            streams.ends[0].set()
        running[STREAMS_AT_ONCE].cancel()
        await settle()
        assert STREAMS_AT_ONCE not in streams.served
        assert (STREAMS_AT_ONCE + 1 in streams.served) is is_told
        for end in streams.ends.values():
            end.set()
    assert (streams.turns.served, streams.turns.waiting) == (0, 0)
