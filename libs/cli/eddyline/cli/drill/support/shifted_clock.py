"""A wall clock shifted by what a file says: milliseconds, empty = none. The monotonic clock is the machine's, as with any
clock that is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eddyline.core.runtime.clock import Timer

SHIFT_FILE: Final = "EDDYLINE_DRILL_SHIFT_FILE"
"""The environment variable that gives the file to a role started by a drill."""


class ShiftedClock:
    """The machine's clock, its wall time shifted."""

    def __init__(self, path: Path) -> None:
        self._clock = SystemClock()
        self._path = path

    def now_ms(self) -> int:
        return self._clock.now_ms() + int(self._path.read_text(encoding="ascii") or "0")

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        return self._clock.call_later(delay_s, callback)
