"""Scan slots: limits how many snapshots of a process read the store's folds at once, and orders them.

Slots are granted in order of requests. A holder whose subscriber does not take its frames loses its slot if others
wait, and after a longer time in any case: the subscriber restarts or continues its snapshot when it reads again. Each
revocation doubles its time limit, so that a slow reader finishes after some attempts; the more snapshots wait, the
shorter the limit is, so that many stalled ones are revoked quickly. The queue is bounded by the watches and their
topics.
Rejected: to buffer the frames of a slow subscriber, which is the whole fold for each; to refuse snapshots above the
bound, which leaves the order to chance; to refuse the slow ones, which the contract does not allow.

I1: at most `SNAPSHOTS_AT_ONCE` slots are held; a slot is held until its scan is closed. I2: no request waits while a
    slot is free.
I3: a holder that waits for the store is never idle: only its subscriber's own time counts.
Threading: event loop only. `request`, `release` or the wheel call the callbacks, which may call back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.runtime.clock import Clock
    from eddyline.delivery.schedule.timer_wheel import ScheduledCall, TimerWheel

SNAPSHOTS_AT_ONCE: Final = 24
"""Without a bound 64 stalled subscribers took every scan of a store, for 300 s.

Two replicas' 48 leave 16 of the 64 to resyncs and other readers. Each costs at most a window of 512 KiB and a page of
256 KiB: 18 MiB. More at once are no faster: four threads of the store read pages.
"""
SNAPSHOT_IDLE_S: Final = 2.0
"""Idle time of a holder while others wait. A frame is 64 KiB: a reader slower than 32 KiB/s starts over."""
SNAPSHOT_IDLE_S_MIN: Final = 0.2
"""The same while 240 or more wait: 1 000 stalled ones delay the next by 12 s.

A reader that keeps up takes a frame in a millisecond.
"""
SNAPSHOT_IDLE_S_MAX: Final = 32.0
"""Upper bound of the doubling: 2 KiB/s. 24 stalled subscribers delay the next by at most this long."""
SNAPSHOT_IDLE_S_ALONE: Final = 10.0
"""Idle time of a holder while none waits here: the store's other readers count too."""
_DOUBLINGS_MAX: Final = 16

assert SNAPSHOT_IDLE_S_MIN <= SNAPSHOT_IDLE_S <= SNAPSHOT_IDLE_S_ALONE <= SNAPSHOT_IDLE_S_MAX


class ScanSlot:
    """One requested slot: waiting, held, or released. `idle_since_s` None = its holder waits for the store."""

    __slots__ = ("_slots", "closing", "granted", "held", "idle_since_s", "revoked", "revoked_count")

    def __init__(
        self, slots: ScanSlots, granted: Callable[[], None], revoked: Callable[[], None], revoked_count: int
    ) -> None:
        self._slots = slots
        self.granted = granted
        self.revoked = revoked
        self.revoked_count = revoked_count
        self.held = False
        self.closing = False
        self.idle_since_s: float | None = None

    def pause_idle(self) -> None:
        """Stop the idle time: the holder waits for the store."""
        self.idle_since_s = None

    def start_idle(self) -> None:
        """Start the idle time: the holder waits for its subscriber, from now on."""
        self.idle_since_s = self._slots.now_s()

    def release(self) -> None:
        """Release the slot, or leave the queue. May be repeated."""
        self._slots.release(self)


class ScanSlots:
    """All slots of a process."""

    def __init__(self, *, clock: Clock, wheel: TimerWheel) -> None:
        self._clock = clock
        self._wheel = wheel
        # dicts keep their order: the oldest first
        self._held: dict[ScanSlot, None] = {}
        self._waiting: dict[ScanSlot, None] = {}
        self._closing_count = 0
        self._next_check: ScheduledCall | None = None
        self._next_check_s = 0.0

    def now_s(self) -> float:
        """Return the time of the clock that measures idleness."""
        return self._clock.monotonic_s()

    def request(self, *, granted: Callable[[], None], revoked: Callable[[], None], revoked_count: int = 0) -> ScanSlot:
        """Request a slot; it is held when this returns, or when `granted` is called.

        `revoked` is called when the holder has been idle too long: it must close its scan, then release the slot.
        `revoked_count` = number of its revocations so far.
        """
        slot = ScanSlot(self, granted, revoked, revoked_count)
        if len(self._held) < SNAPSHOTS_AT_ONCE:
            self._hold(slot)
        else:
            self._waiting[slot] = None
        self._check_idle()
        return slot

    def release(self, slot: ScanSlot) -> None:
        """Release a slot, and grant it to the oldest waiting request."""
        self._waiting.pop(slot, None)
        if not slot.held:
            return
        slot.held = False
        self._closing_count -= slot.closing
        del self._held[slot]
        if self._waiting:
            successor = next(iter(self._waiting))
            del self._waiting[successor]
            self._hold(successor)
            successor.granted()
        self._check_idle()

    def _hold(self, slot: ScanSlot) -> None:
        slot.held = True
        slot.start_idle()
        self._held[slot] = None

    def _check_idle(self) -> None:
        """Revoke slots that have been idle too long, and schedule the next check."""
        now_s = self.now_s()
        for slot in sorted(self._held, key=lambda held: now_s if held.idle_since_s is None else held.idle_since_s):
            if slot.held and self._due_s(slot, now_s) <= now_s:
                slot.pause_idle()  # revoked once: until its release it closes its scan
                slot.closing = True
                self._closing_count += 1
                slot.revoked()
        if self._held:
            self._schedule_check(min(self._due_s(slot, now_s) for slot in self._held), now_s)

    def _schedule_check(self, due_s: float, now_s: float) -> None:
        if self._next_check is not None:
            if self._next_check_s <= due_s:
                return
            self._next_check.cancel()
        self._next_check_s = due_s
        self._next_check = self._wheel.schedule(due_s - now_s, self._on_check_due)

    def _on_check_due(self) -> None:
        self._next_check = None
        self._check_idle()

    def _due_s(self, slot: ScanSlot, now_s: float) -> float:
        """Return the time at which a holder will have been idle too long, if it is from now on."""
        idle_s = SNAPSHOT_IDLE_S * 2.0 ** min(slot.revoked_count, _DOUBLINGS_MAX)
        if len(self._waiting) > self._closing_count:
            crowding = max(1.0, len(self._waiting) / SNAPSHOTS_AT_ONCE)
            idle_s = max(idle_s / crowding, SNAPSHOT_IDLE_S_MIN)
        else:
            idle_s = max(idle_s, SNAPSHOT_IDLE_S_ALONE)
        return (now_s if slot.idle_since_s is None else slot.idle_since_s) + min(idle_s, SNAPSHOT_IDLE_S_MAX)
