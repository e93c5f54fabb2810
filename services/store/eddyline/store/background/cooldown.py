"""What failed is let alone for a while: a pause for each thing, which grows while it goes on failing.

Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

    from eddyline.core.runtime.clock import Clock

PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 60.0
"""A full or sick disk gets better within minutes, if at all."""
COOLDOWNS_MAX: Final = 100_000
"""Things that rest at once: as many as a store has topics, usually. Beyond it the one that rests longest is tried again."""


class _Rest(NamedTuple):
    until_s: float
    pause_s: float


class Cooldown:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rests: dict[Hashable, _Rest] = {}

    def is_active(self, thing: Hashable) -> bool:
        """True = it is not its time yet."""
        rest = self._rests.get(thing)
        return rest is not None and self._clock.monotonic_s() < rest.until_s

    def record_failure(self, thing: Hashable) -> None:
        """It failed, again."""
        before = self._rests.pop(thing, None)
        pause_s = min(2 * before.pause_s, PAUSE_S_MAX) if before is not None else PAUSE_S
        if len(self._rests) >= COOLDOWNS_MAX:
            del self._rests[next(iter(self._rests))]
        self._rests[thing] = _Rest(self._clock.monotonic_s() + pause_s, pause_s)

    def record_success(self, thing: Hashable) -> None:
        """It did not fail."""
        self._rests.pop(thing, None)
