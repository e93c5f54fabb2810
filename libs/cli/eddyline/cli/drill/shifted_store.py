"""A store whose wall clock is shifted by what a file says: `EDDYLINE_DRILL_SHIFT_FILE`, milliseconds, empty = none.

Only the drill of a clock that jumps runs it. The monotonic clock is the machine's, as with any clock that is set.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.core.clock import SystemClock
from eddyline.store.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.clock import Timer

SHIFT_FILE: Final = "EDDYLINE_DRILL_SHIFT_FILE"


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


if __name__ == "__main__":
    environ = dict(os.environ)
    sys.exit(main(environ, clock=ShiftedClock(Path(environ.pop(SHIFT_FILE)))))
