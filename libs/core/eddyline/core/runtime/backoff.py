"""Backoff: how long to wait before the next try.

Exponential with full jitter: uniform between 0 and a ceiling that doubles up to a cap, so that clients that lost one
server together do not come back together. Source: M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog,
2015. Rejected: equal jitter, which keeps half of each wait fixed and has more calls in flight for the same result.
It only computes; the caller waits by its `Clock`, and bounds its tries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

BASE_S: Final = 0.1
"""A restarted role is back within a second; the first tries should find it then."""
CAP_S: Final = 5.0
"""gRPC's own is 120 s, which leaves a follower stale two minutes after a restart. 5 s: one attempt each 2.5 s a client
on average while a server is down for long."""
_DOUBLINGS_MAX: Final = 32


class Backoff:
    """Delays of one retry loop. Forget the past with `reset` after a success."""

    def __init__(self, random: Random, *, base_s: float = BASE_S, cap_s: float = CAP_S) -> None:
        assert 0 < base_s <= cap_s
        self._random = random
        self._base_s = base_s
        self._cap_s = cap_s
        self._failures = 0

    @property
    def failures(self) -> int:
        """Delays given since the last reset."""
        return self._failures

    def next_delay_s(self, *, minimum_s: float = 0.0) -> float:
        """Give the next delay: `minimum_s` (what the server asked for) plus 0 to min(cap, base * 2^failures)."""
        ceiling_s = min(self._cap_s, self._base_s * 2.0 ** min(self._failures, _DOUBLINGS_MAX))
        self._failures += 1
        return minimum_s + self._random.uniform(0.0, ceiling_s)

    def reset(self) -> None:
        """Start again from the base."""
        self._failures = 0
