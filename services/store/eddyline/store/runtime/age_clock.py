"""The time that ages are counted in: the wall clock, but never faster than this process has seen time pass.

A wall clock set forward would make every record old at once, and what retention takes is gone for good. So the time since
the process began is measured on the monotonic clock too, and the earlier of the two counts: after a jump forward records
stay longer than they need (until a restart, which takes the clock as it finds it), after a jump back likewise.
Threading: any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eddyline.core.runtime.clock import Clock


class AgeClock:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_ms = clock.now_ms()
        self._start_s = clock.monotonic_s()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, for ages alone."""
        passed_ms = int((self._clock.monotonic_s() - self._start_s) * 1000)
        return min(self._clock.now_ms(), self._start_ms + passed_ms)
