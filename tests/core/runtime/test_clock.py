"""Waiting on a clock that is advanced by hand."""

from __future__ import annotations

import asyncio

import pytest

from eddyline.core.runtime.clock import sleep, wait_event
from tests.support.manual_clock import START_MS, ManualClock, settle


def test_timers_fire_in_order_of_time_and_ties_in_order_of_scheduling() -> None:
    clock, fired = ManualClock(), []
    for name, delay_s in (("c", 3), ("a", 1), ("b", 2), ("a2", 1)):
        clock.call_later(delay_s, lambda name=name: fired.append((name, clock.monotonic_s())))  # type: ignore[misc]
    clock.advance(2.5)
    assert fired == [("a", 1.0), ("a2", 1.0), ("b", 2.0)]
    assert (clock.now_ms(), clock.pending) == (START_MS + 2500, 1)


def test_a_timer_set_by_a_timer_fires_in_the_same_advance() -> None:
    clock, fired = ManualClock(), []
    clock.call_later(1, lambda: clock.call_later(1, lambda: fired.append(clock.monotonic_s())))
    clock.advance(2)
    assert fired == [2.0]


def test_a_cancelled_timer_never_fires() -> None:
    clock, fired = ManualClock(), []
    clock.call_later(1, lambda: fired.append(1)).cancel()
    clock.advance(5)
    assert (fired, clock.pending) == ([], 0)


async def test_sleep_ends_when_its_time_is_over_and_not_before() -> None:
    clock = ManualClock()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(sleep(clock, 1))
        await clock.pass_time(0.999)
        assert not task.done()
        await clock.pass_time(0.001)
        assert task.done()


async def test_a_cancelled_sleep_leaves_no_timer() -> None:
    clock = ManualClock()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(sleep(clock, 1))
        await settle()
        task.cancel()
    assert (task.cancelled(), clock.pending) == (True, 0)


async def test_pass_time_lets_woken_tasks_sleep_again() -> None:
    clock, woken = ManualClock(), []

    async def ticker() -> None:
        for _ in range(3):
            await sleep(clock, 1)
            woken.append(clock.monotonic_s())

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ticker())
        await clock.pass_time(3)
    assert woken == [1.0, 2.0, 3.0]


async def test_wait_event_is_true_when_set_in_time() -> None:
    clock, event = ManualClock(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(wait_event(clock, event, 1))
        await clock.pass_time(0.5)
        event.set()
    assert (task.result(), clock.pending) == (True, 0)


async def test_wait_event_is_false_when_its_time_is_over() -> None:
    clock, event = ManualClock(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(wait_event(clock, event, 1))
        await clock.pass_time(1)
    assert task.result() is False


async def test_wait_event_does_not_wait_without_time() -> None:
    clock, event = ManualClock(), asyncio.Event()
    assert await wait_event(clock, event, 0) is False
    event.set()
    assert await wait_event(clock, event, 0) is True


async def test_a_cancelled_wait_is_cancelled_and_leaves_no_timer() -> None:
    clock, event = ManualClock(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(wait_event(clock, event, 1))
        await settle()
        task.cancel()
    assert (task.cancelled(), clock.pending) == (True, 0)


async def test_a_cancel_at_the_moment_of_the_timeout_propagates() -> None:
    clock, event = ManualClock(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(wait_event(clock, event, 1))
        await settle()
        clock.advance(1)
        task.cancel()
    assert task.cancelled()


async def test_a_wait_inside_the_cleanup_of_a_cancelled_task_still_times_out() -> None:
    clock, event = ManualClock(), asyncio.Event()
    outcome: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            outcome.append(await wait_event(clock, event, 1))

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work())
        await settle()
        task.cancel()
        await clock.pass_time(1)
    assert (outcome, task.cancelled()) == ([False], True)


async def test_an_outer_timeout_still_ends_a_wait() -> None:
    clock, event = ManualClock(), asyncio.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await wait_event(clock, event, 1)
