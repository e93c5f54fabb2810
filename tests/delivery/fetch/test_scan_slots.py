"""Scan slots: granted in order of requests, and revoked from idle holders."""

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
from tests.support.delivery.slots import held_count, waiting_count
from tests.support.manual_clock import ManualClock


class Slots:
    """Slots, and the callbacks of their requests; a revoked holder releases its slot at `close`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.slots = ScanSlots(clock=self.clock, wheel=TimerWheel(self.clock))
        self.granted: list[int] = []
        self.revoked: list[int] = []
        self.requested: list[ScanSlot] = []

    def request(self, count: int = 1, *, revoked_count: int = 0) -> list[ScanSlot]:
        return [
            self._request_one(number, revoked_count)
            for number in range(len(self.requested), len(self.requested) + count)
        ]

    def _request_one(self, number: int, revoked_count: int) -> ScanSlot:
        slot = self.slots.request(
            granted=lambda: self.granted.append(number),
            revoked=lambda: self.revoked.append(number),
            revoked_count=revoked_count,
        )
        self.requested.append(slot)
        return slot

    def close(self) -> None:
        for number in self.revoked:
            self.requested[number].release()


def test_slots_are_granted_in_order_of_requests() -> None:
    slots = Slots()
    holders = slots.request(SNAPSHOTS_AT_ONCE)
    assert all(slot.held for slot in holders)
    waiting = slots.request(3)
    assert not any(slot.held for slot in waiting)
    waiting[1].release()
    for holder in holders[:2]:
        holder.release()
        holder.release()
    assert slots.granted == [SNAPSHOTS_AT_ONCE, SNAPSHOTS_AT_ONCE + 2]
    assert (held_count(slots.slots), waiting_count(slots.slots)) == (SNAPSHOTS_AT_ONCE, 0)
    holders[2].release()
    assert slots.request()[0].held


def test_idle_holder_loses_its_slot_even_if_no_request_waits() -> None:
    slots = Slots()
    slots.request()
    slots.clock.advance(SNAPSHOT_IDLE_S_ALONE - TICK_S)
    assert slots.revoked == []
    slots.clock.advance(2 * TICK_S)
    assert slots.revoked == [0]
    slots.clock.advance(SNAPSHOT_IDLE_S_MAX)
    assert slots.revoked == [0], "it is revoked once"


def test_as_many_slots_are_revoked_as_requests_wait_starting_with_the_longest_idle() -> None:
    slots = Slots()
    for holder in slots.request(SNAPSHOTS_AT_ONCE):
        slots.clock.advance(TICK_S)
        holder.start_idle()
    slots.requested[1].start_idle()
    slots.request(2)
    slots.clock.advance(SNAPSHOT_IDLE_S + TICK_S)
    assert slots.revoked == [0, 2]
    assert held_count(slots.slots) == SNAPSHOTS_AT_ONCE, "a slot is held until its scan is closed"
    slots.close()
    assert slots.granted == [SNAPSHOTS_AT_ONCE, SNAPSHOTS_AT_ONCE + 1]


def test_a_late_request_revokes_holders_that_were_idle_before() -> None:
    slots = Slots()
    slots.request(SNAPSHOTS_AT_ONCE)
    slots.clock.advance(SNAPSHOT_IDLE_S + TICK_S)
    assert slots.revoked == []
    slots.request()
    assert slots.revoked == [0]


def test_holder_that_reads_or_waits_for_the_store_keeps_its_slot() -> None:
    slots = Slots()
    reading, *others = slots.request(SNAPSHOTS_AT_ONCE)
    slots.request()
    for other in others:
        other.pause_idle()
    for _ in range(100):
        slots.clock.advance(SNAPSHOT_IDLE_S / 2)
        reading.start_idle()
    assert slots.revoked == []


@pytest.mark.parametrize(
    ("revoked_count", "waiting", "expected_s"),
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
def test_idle_time_doubles_with_each_revocation_and_shrinks_with_the_queue(
    revoked_count: int, waiting: int, expected_s: float
) -> None:
    slots = Slots()
    slots.request(SNAPSHOTS_AT_ONCE, revoked_count=revoked_count)
    slots.request(waiting)
    slots.clock.advance(expected_s - TICK_S)
    assert slots.revoked == []
    slots.clock.advance(2 * TICK_S)
    assert slots.revoked[0] == 0
