"""A writer of a store's database in a process of its own, killed while it writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[3]


def killed_writer(writer: ModuleType, path: Path, acks: int) -> int:
    """Run a writer and kill it after `acks` acknowledged steps; return the last acknowledged step's number."""
    with subprocess.Popen(
        [sys.executable, "-m", writer.__name__, str(path)], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(acks)]
        process.kill()
        # The rest of the pipe was acknowledged too.
        lines += process.stdout.readlines()
    return max(int(line) for line in lines if line.endswith(b"\n"))
