"""Cool-down after failures: a pause for each subject, which doubles while its job keeps failing.

Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

    from eddyline.core.runtime.clock import Clock

PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 60.0
"""A full or failing disk recovers within minutes, if at all."""
COOLDOWNS_MAX: Final = 100_000
"""Cool-downs at once: about as many as a store has topics. Above it the oldest one is dropped."""


class _Pause(NamedTuple):
    until_s: float
    pause_s: float


class Cooldown:
    """Cool-downs by subject, such as a topic or the name of a job."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pauses: dict[Hashable, _Pause] = {}

    def is_active(self, subject: Hashable) -> bool:
        """Return whether the subject is to be skipped."""
        pause = self._pauses.get(subject)
        return pause is not None and self._clock.monotonic_s() < pause.until_s

    def record_failure(self, subject: Hashable) -> None:
        """Start the subject's cool-down: 1 s, then twice the last one, up to 60 s."""
        previous = self._pauses.pop(subject, None)
        pause_s = min(2 * previous.pause_s, PAUSE_S_MAX) if previous is not None else PAUSE_S
        if len(self._pauses) >= COOLDOWNS_MAX:
            del self._pauses[next(iter(self._pauses))]
        self._pauses[subject] = _Pause(self._clock.monotonic_s() + pause_s, pause_s)

    def record_success(self, subject: Hashable) -> None:
        """Forget the subject's failures."""
        self._pauses.pop(subject, None)
