"""Large answers rest after each other in measure of the time that the loop was busy with them."""

from __future__ import annotations

import asyncio

import pytest

from eddyline.store.rpc.limits import REST_S_MAX, RESTS, LoopThrottle
from tests.support.manual_clock import ManualClock, settle


@pytest.mark.parametrize(("busy_s", "rest_s"), [(0.005, 0.005 * RESTS), (1.0, REST_S_MAX)])
async def test_the_next_answer_waits_in_measure_of_the_last(busy_s: float, rest_s: float) -> None:
    clock = ManualClock()
    share = LoopThrottle(clock)
    begun = 0

    async def send() -> None:
        nonlocal begun
        await share.turn()
        begun += 1
        if begun == 1:
            clock.advance(busy_s)  # the loop is busy meanwhile

    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):  # both are ready at once
            tasks.create_task(send())
        await settle()
        assert begun == 1
        await clock.pass_time(rest_s - 0.001)
        assert begun == 1
        await clock.pass_time(0.002)
        assert begun == 2


async def test_caller_cancelled_in_a_wait_leaves_the_turn_to_the_next() -> None:
    clock = ManualClock()
    share = LoopThrottle(clock)
    await share.turn()
    clock.advance(0.01)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(share.turn())
        behind = tasks.create_task(share.turn())
        await settle()
        waiting.cancel()
        await settle()
        assert not behind.done()
        await clock.pass_time(RESTS * 0.01 + 0.001)
        assert behind.done()
