"""Scan slots: in order of asking, and taken back from those that stand still."""

from __future__ import annotations

import pytest

from eddyline.delivery.fetch.scan_slots import (
    SNAPSHOT_IDLE_S,
    SNAPSHOT_IDLE_S_ALONE,
    SNAPSHOT_IDLE_S_MAX,
    SNAPSHOTS_AT_ONCE,
    ScanSlot,
    ScanSlots,
)
from eddyline.delivery.schedule.timer_wheel import TICK_S, TimerWheel
from tests.support.manual_clock import ManualClock


class Slots:
    """Slots, and what their askers were told; who is told to close gives its slot back at `close`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.slots = ScanSlots(clock=self.clock, wheel=TimerWheel(self.clock))
        self.granted: list[int] = []
        self.taken_back: list[int] = []
        self.asked: list[ScanSlot] = []

    def ask(self, count: int = 1, *, given_way: int = 0) -> list[ScanSlot]:
        return [self._ask(number, given_way) for number in range(len(self.asked), len(self.asked) + count)]

    def _ask(self, number: int, given_way: int) -> ScanSlot:
        slot = self.slots.ask(
            granted=lambda: self.granted.append(number),
            taken_back=lambda: self.taken_back.append(number),
            given_way=given_way,
        )
        self.asked.append(slot)
        return slot

    def close(self) -> None:
        for number in self.taken_back:
            self.asked[number].release()


def test_slots_are_given_in_order_of_asking() -> None:
    slots = Slots()
    holders = slots.ask(SNAPSHOTS_AT_ONCE)
    assert all(slot.held for slot in holders)
    waiting = slots.ask(3)
    assert not any(slot.held for slot in waiting)
    waiting[1].release()
    for holder in holders[:2]:
        holder.release()
        holder.release()
    assert slots.granted == [SNAPSHOTS_AT_ONCE, SNAPSHOTS_AT_ONCE + 2]
    assert (slots.slots.held_count, slots.slots.waiting_count) == (SNAPSHOTS_AT_ONCE, 0)
    holders[2].release()
    assert slots.ask()[0].held


def test_holder_that_stands_still_loses_its_slot_after_a_while_though_nobody_waits() -> None:
    slots = Slots()
    slots.ask()
    slots.clock.advance(SNAPSHOT_IDLE_S_ALONE - TICK_S)
    assert slots.taken_back == []
    slots.clock.advance(2 * TICK_S)
    assert slots.taken_back == [0]
    slots.clock.advance(SNAPSHOT_IDLE_S_MAX)
    assert slots.taken_back == [0], "it is told once"


def test_as_many_slots_are_taken_back_as_others_wait_for_from_the_longest_idle() -> None:
    slots = Slots()
    for holder in slots.ask(SNAPSHOTS_AT_ONCE):
        slots.clock.advance(TICK_S)
        holder.offered()
    slots.asked[1].offered()
    slots.ask(2)
    slots.clock.advance(SNAPSHOT_IDLE_S + TICK_S)
    assert slots.taken_back == [0, 2]
    assert slots.slots.held_count == SNAPSHOTS_AT_ONCE, "a slot is held until its scan is closed"
    slots.close()
    assert slots.granted == [SNAPSHOTS_AT_ONCE, SNAPSHOTS_AT_ONCE + 1]


def test_who_asks_late_finds_those_that_stood_still_already() -> None:
    slots = Slots()
    slots.ask(SNAPSHOTS_AT_ONCE)
    slots.clock.advance(SNAPSHOT_IDLE_S + TICK_S)
    assert slots.taken_back == []
    slots.ask()
    assert slots.taken_back == [0]


def test_holder_that_reads_or_waits_for_the_store_keeps_its_slot() -> None:
    slots = Slots()
    reading, *others = slots.ask(SNAPSHOTS_AT_ONCE)
    slots.ask()
    for other in others:
        other.reading()
    for _ in range(100):
        slots.clock.advance(SNAPSHOT_IDLE_S / 2)
        reading.offered()
    assert slots.taken_back == []


@pytest.mark.parametrize(
    ("given_way", "waiting", "expected_s"),
    [
        (0, 1, 2.0),
        (1, 1, 4.0),
        (3, 1, 16.0),
        (20, 1, SNAPSHOT_IDLE_S_MAX),
        (0, 2 * SNAPSHOTS_AT_ONCE, 1.0),
        (2, 2 * SNAPSHOTS_AT_ONCE, 4.0),
        (0, 100 * SNAPSHOTS_AT_ONCE, 0.2),
        (20, 100 * SNAPSHOTS_AT_ONCE, SNAPSHOT_IDLE_S_MAX),
    ],
)
def test_patience_doubles_each_time_and_is_shared_among_those_that_wait(
    given_way: int, waiting: int, expected_s: float
) -> None:
    slots = Slots()
    slots.ask(SNAPSHOTS_AT_ONCE, given_way=given_way)
    slots.ask(waiting)
    slots.clock.advance(expected_s - TICK_S)
    assert slots.taken_back == []
    slots.clock.advance(2 * TICK_S)
    assert slots.taken_back[0] == 0
