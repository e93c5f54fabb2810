"""Scan slots: how many snapshots of a process read the store's folds at once, and whose turn it is.

Slots are given in order of asking. A holder whose subscriber does not take what it was offered loses its slot to
whoever waits, and after a while anyway: the subscriber begins its snapshot anew when it reads on. Each time that happens
its patience doubles, so that one that reads slowly is through after some attempts; the more wait the less there is of it,
so that many that stand still are soon dealt with. Those that wait are bounded by the watches and their topics.
Rejected: to keep what a slow subscriber has not taken, which is the whole fold for each; to refuse snapshots above the
bound, which leaves the turn to chance; to refuse the slow ones, which the contract does not know.

I1: at most `SNAPSHOTS_AT_ONCE` slots are held; a slot is held until its scan is closed. I2: nobody waits while one is free.
I3: a holder that waits for the store is never idle: only its subscriber's own time counts.
Threading: event loop only. The callbacks are called from `ask`, `release` or the wheel, and may call back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.runtime.clock import Clock
    from eddyline.delivery.schedule.timer_wheel import ScheduledCall, TimerWheel

SNAPSHOTS_AT_ONCE: Final = 24
"""Elsewhere unbounded: 64 subscribers that stood still took every scan of a store, for 300 s. Two replicas' 48 leave 16 of
the 64 to resyncs and other readers. Each costs at most a window of 512 KiB and a page of 256 KiB: 18 MiB. More at once
are no faster: pages are read by four threads of the store."""
SNAPSHOT_IDLE_S: Final = 2.0
"""How long a holder may stand still while others wait. A frame is 64 KiB: who reads less than 32 KiB/s begins anew."""
SNAPSHOT_IDLE_S_MIN: Final = 0.2
"""The same while 240 or more wait: 1 000 that stand still delay the next by 12 s. A reader that keeps up takes a frame
in a millisecond."""
SNAPSHOT_IDLE_S_MAX: Final = 32.0
"""What doubling makes of it: 2 KiB/s. 24 subscribers that stand still then delay the next by so much at most."""
SNAPSHOT_IDLE_S_ALONE: Final = 10.0
"""How long a holder may stand still while nobody waits here: the store's other readers count too."""
_DOUBLINGS_MAX: Final = 16

assert SNAPSHOT_IDLE_S_MIN <= SNAPSHOT_IDLE_S <= SNAPSHOT_IDLE_S_ALONE <= SNAPSHOT_IDLE_S_MAX


class ScanSlot:
    """One asked-for slot: waits, is held, is released. `idle_since_s` None = its subscriber is not waited for."""

    __slots__ = ("_slots", "closing", "given_way", "granted", "held", "idle_since_s", "taken_back")

    def __init__(
        self, slots: ScanSlots, granted: Callable[[], None], taken_back: Callable[[], None], given_way: int
    ) -> None:
        self._slots = slots
        self.granted = granted
        self.taken_back = taken_back
        self.given_way = given_way
        self.held = False
        self.closing = False
        self.idle_since_s: float | None = None

    def reading(self) -> None:
        """The store has the next turn."""
        self.idle_since_s = None

    def offered(self) -> None:
        """The subscriber has the next turn, from now on."""
        self.idle_since_s = self._slots.now_s()

    def release(self) -> None:
        """Give it back, or give up waiting. Harmless when repeated."""
        self._slots.release(self)


class ScanSlots:
    """All slots of a process; see the module."""

    def __init__(self, *, clock: Clock, wheel: TimerWheel) -> None:
        self._clock = clock
        self._wheel = wheel
        # dicts for their order: the oldest first
        self._held: dict[ScanSlot, None] = {}
        self._waiting: dict[ScanSlot, None] = {}
        self._closing_count = 0
        self._review: ScheduledCall | None = None
        self._review_s = 0.0

    @property
    def held_count(self) -> int:
        """Slots that are held."""
        return len(self._held)

    @property
    def waiting_count(self) -> int:
        """How many wait for one."""
        return len(self._waiting)

    def now_s(self) -> float:
        """The time that idleness is measured in."""
        return self._clock.monotonic_s()

    def ask(self, *, granted: Callable[[], None], taken_back: Callable[[], None], given_way: int = 0) -> ScanSlot:
        """Ask for a slot; it is held when this returns, or when `granted` is called.

        `taken_back` is told that the holder stood still too long: it closes its scan, then releases the slot.
        `given_way` = how often that has happened to it.
        """
        slot = ScanSlot(self, granted, taken_back, given_way)
        if len(self._held) < SNAPSHOTS_AT_ONCE:
            self._hold(slot)
        else:
            self._waiting[slot] = None
        self._look()
        return slot

    def release(self, slot: ScanSlot) -> None:
        """Take a slot back, and give it to who has waited longest."""
        self._waiting.pop(slot, None)
        if not slot.held:
            return
        slot.held = False
        self._closing_count -= slot.closing
        del self._held[slot]
        if self._waiting:
            following = next(iter(self._waiting))
            del self._waiting[following]
            self._hold(following)
            following.granted()
        self._look()

    def _hold(self, slot: ScanSlot) -> None:
        slot.held = True
        slot.offered()
        self._held[slot] = None

    def _look(self) -> None:
        """Take back from those that stand still too long, and look again when the next will have."""
        now_s = self.now_s()
        for slot in sorted(self._held, key=lambda held: now_s if held.idle_since_s is None else held.idle_since_s):
            if slot.held and self._due_s(slot, now_s) <= now_s:
                slot.reading()  # told once: from here to its release it closes its scan
                slot.closing = True
                self._closing_count += 1
                slot.taken_back()
        if self._held:
            self._look_at(min(self._due_s(slot, now_s) for slot in self._held), now_s)

    def _look_at(self, due_s: float, now_s: float) -> None:
        if self._review is not None:
            if self._review_s <= due_s:
                return
            self._review.cancel()
        self._review_s = due_s
        self._review = self._wheel.schedule(due_s - now_s, self._turn)

    def _turn(self) -> None:
        self._review = None
        self._look()

    def _due_s(self, slot: ScanSlot, now_s: float) -> float:
        """When a holder will have stood still too long, if it does from now on."""
        idle_s = SNAPSHOT_IDLE_S * 2.0 ** min(slot.given_way, _DOUBLINGS_MAX)
        if len(self._waiting) > self._closing_count:
            crowd = max(1.0, len(self._waiting) / SNAPSHOTS_AT_ONCE)
            idle_s = max(idle_s / crowd, SNAPSHOT_IDLE_S_MIN)
        else:
            idle_s = max(idle_s, SNAPSHOT_IDLE_S_ALONE)
        return (now_s if slot.idle_since_s is None else slot.idle_since_s) + min(idle_s, SNAPSHOT_IDLE_S_MAX)
