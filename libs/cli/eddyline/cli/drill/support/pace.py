"""How long drills take: rounds, writing between kills, time a victim stays down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eddyline.core.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class DrillTiming:
    """Of one drill. After `over_s` of the clock no further round begins; 0 = no such time."""

    rounds: int
    write_s: float
    down_s: float
    over_s: float = 0.0

    def is_over(self, clock: Clock) -> bool:
        """Whether the time is over."""
        return bool(self.over_s) and clock.monotonic_s() >= self.over_s


def short_pace(rounds: int, over_s: float) -> DrillTiming:
    """Seconds a drill."""
    return DrillTiming(rounds or 3, write_s=1.0, down_s=0.3, over_s=over_s)


def long_pace(rounds: int) -> DrillTiming:
    """About a minute a drill."""
    return DrillTiming(rounds or 8, write_s=4.0, down_s=3.0)
