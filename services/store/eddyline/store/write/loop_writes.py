"""Decides whether the event loop may write a group itself, by what writes of its kind took lately.

A hand-over to the writer's thread and back costs 40 us of processor time, and 70 us of a lone append's wait; on a busy
machine each is a switch of threads more. A write here holds the loop as long as the disk takes.

I1: writes are expected within `HERE_S_MAX`, by a mean and four deviations of those before (as TCP bounds a round trip).
I2: whatever the disk does, writes hold the loop for at most `SHARE` of the time, `BURST_S`, and one write more: a slow one
is paid for by as much time in which groups go to the thread. I3: after slow writes one is tried again, at doubled
distances.
Threading: event loop only.
"""

from __future__ import annotations

from typing import Final

HERE_S_MAX: Final = 0.000_4
"""A gRPC call takes 0.5 ms of the loop."""
SHARE: Final = 0.5
"""A lone writer's loop waits for the disk half of the time, and has nothing else to do."""
BURST_S: Final = 0.005
SURELY_DISK_S: Final = 0.002
"""The writer's thread waits for the interpreter's lock twice, up to 0.5 ms each, so a time between `HERE_S_MAX` and this
says nothing about the disk. A slower write counts as this: one of 100 ms says no more about the next one."""
TRIES_APART_MIN: Final = 16
TRIES_APART_MAX: Final = 1_024
"""Bounds of the groups between two tries while writes are slow."""


class LoopWrites:
    """What writes of one kind took, with or without fdatasync."""

    def __init__(self) -> None:
        self._mean_s = 0.0
        self._deviation_s = 0.0
        self._paid_s = 0.0
        """Time from which on the loop may be held again."""
        self._apart = TRIES_APART_MIN
        self._refused = 0
        """Groups refused since the last try."""

    @property
    def expected_s(self) -> float:
        """Upper bound of the next write, if it is like those before."""
        return self._mean_s + 4 * self._deviation_s

    def may_write(self, now_s: float) -> bool:
        """Return True if the loop may make the next write."""
        if now_s < self._paid_s:
            return False
        if self.expected_s <= HERE_S_MAX:
            return True
        self._refused += 1
        return self._refused > self._apart

    def wrote_here(self, took_s: float, now_s: float) -> None:
        """Record a write of the loop that ended at `now_s`."""
        self._observe(took_s)
        self._paid_s = max(self._paid_s, now_s - BURST_S / SHARE) + took_s / SHARE
        self._refused = 0
        if self.expected_s <= HERE_S_MAX:
            self._apart = TRIES_APART_MIN
        elif took_s > HERE_S_MAX:
            self._apart = min(2 * self._apart, TRIES_APART_MAX)

    def wrote_away(self, took_s: float) -> None:
        """Record a write of the writer's thread."""
        if took_s <= HERE_S_MAX or took_s >= SURELY_DISK_S:
            self._observe(took_s)

    def _observe(self, took_s: float) -> None:
        error_s = min(took_s, SURELY_DISK_S) - self._mean_s
        self._mean_s += error_s / 8
        self._deviation_s += (abs(error_s) - self._deviation_s) / 4
