"""Appends wait for room before they are received, in order, and release it in whichever way they end."""

from __future__ import annotations

import asyncio

from eddyline.core.records.record import MESSAGE_BYTES_MAX
from eddyline.core.server.append_limiter import AppendLimiter


async def call(room: AppendLimiter, entered: list[int], number: int, leave: asyncio.Event) -> None:
    await room.claim()
    entered.append(number)
    await leave.wait()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_calls_wait_for_room_in_their_order() -> None:
    room, entered, leave = AppendLimiter(2 * MESSAGE_BYTES_MAX), list[int](), [asyncio.Event() for _ in range(4)]
    async with asyncio.TaskGroup() as calls:
        for number in range(4):
            calls.create_task(call(room, entered, number, leave[number]))
        await turns()
        assert entered == [0, 1]
        leave[1].set()
        await turns()
        assert entered == [0, 1, 2]
        for event in leave:
            event.set()
    await turns()
    assert entered == [0, 1, 2, 3]
    assert room.bytes == 0


async def test_one_call_is_admitted_however_small_the_bound() -> None:
    room, entered, leave = AppendLimiter(1), list[int](), asyncio.Event()
    leave.set()
    async with asyncio.TaskGroup() as calls:
        for number in range(3):
            calls.create_task(call(room, entered, number, leave))
    assert entered == [0, 1, 2]


async def test_a_cancelled_call_leaves_its_room_waiting_or_not() -> None:
    room, entered, never = AppendLimiter(1), list[int](), asyncio.Event()
    async with asyncio.TaskGroup() as calls:
        first, second, third = (calls.create_task(call(room, entered, number, never)) for number in range(3))
        await turns()
        second.cancel()
        await turns()
        first.cancel()
        await turns()
        assert entered == [0, 2]
        third.cancel()
    await turns()
    assert room.bytes == 0


async def test_calls_come_one_at_a_time_while_memory_is_full() -> None:
    room, entered, leave = AppendLimiter(8 * MESSAGE_BYTES_MAX), list[int](), asyncio.Event()
    room.hold(True)
    async with asyncio.TaskGroup() as calls:
        for number in range(3):
            calls.create_task(call(room, entered, number, leave))
        await turns()
        assert entered == [0]
        room.hold(False)
        await turns()
        assert entered == [0, 1, 2]
        leave.set()
