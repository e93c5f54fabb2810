"""Clock for the ages of records: the wall clock, but never faster than the monotonic clock of this process.

A wall clock set forward would make every record old at once, and retention's deletes are final. So the time since the
process began is measured on the monotonic clock too, and the earlier of the two counts. After a jump forward records stay
longer than needed (until a restart, which trusts the wall clock), after a jump back likewise.
Threading: any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eddyline.core.runtime.clock import Clock


class AgeClock:
    """Wall clock bounded by the monotonic clock; see the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_ms = clock.now_ms()
        self._start_s = clock.monotonic_s()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; use it for ages alone."""
        passed_ms = int((self._clock.monotonic_s() - self._start_s) * 1000)
        return min(self._clock.now_ms(), self._start_ms + passed_ms)
