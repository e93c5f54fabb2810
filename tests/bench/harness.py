"""How a row is measured and told: rounds of ours and of the baseline in turn, medians, one line a machine can read.

A figure counts only as a ratio to something measured in the same run, since machines are shared. Each row returns its
`Figure`s; the command prints them and writes them, with the machine, to `tests/bench/results/<date>.json`.
"""

from __future__ import annotations

import os
import platform
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Figure:
    """One result: `value` in `unit`, its ratio to the baseline, and the ratio to reach (None = only shown)."""

    row: str
    name: str
    value: float
    unit: str
    ratio: float | None = None
    target: float | None = None
    at_most: bool = False

    def line(self) -> str:
        """`P1 append_stream value=… unit=… ratio=… target=… ok|short`."""
        parts = [self.row, self.name, f"value={self.value:.0f}" if self.value >= 100 else f"value={self.value:.3f}"]
        parts.append(f"unit={self.unit}")
        if self.ratio is not None:
            parts.append(f"ratio={self.ratio:.2f}")
        if self.target is not None and self.ratio is not None:
            met = self.ratio <= self.target if self.at_most else self.ratio >= self.target
            parts += [f"target={self.target:g}", "ok" if met else "short"]
        return " ".join(parts)


async def alternate(
    ours: Callable[[], Awaitable[float]], baseline: Callable[[], Awaitable[float]], *, rounds: int = ROUNDS
) -> tuple[float, float]:
    """Measure both in turn, one warm-up each first; their medians."""
    await ours()
    await baseline()
    ours_seen, baseline_seen = [], []
    for _ in range(rounds):
        ours_seen.append(await ours())
        baseline_seen.append(await baseline())
    return statistics.median(ours_seen), statistics.median(baseline_seen)


def machine() -> dict[str, str | int]:
    """What the figures were measured on."""
    return {
        "cores": os.cpu_count() or 0,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
