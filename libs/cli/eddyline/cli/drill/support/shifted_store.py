"""A store on a shifted clock (`shift.py`), as a process of its own, run by the drill of a clock that jumps alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from eddyline.cli.drill.support.shifted_clock import SHIFT_FILE, ShiftedClock
from eddyline.store.__main__ import main

if __name__ == "__main__":
    environ = dict(os.environ)
    sys.exit(main(environ, clock=ShiftedClock(Path(environ.pop(SHIFT_FILE)))))
