"""Retry back-off: the delay before the next attempt.

Exponential with full jitter: uniform between 0 and a ceiling that doubles up to a cap, so that clients that lost one server
together do not reconnect together. Source: M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
Rejected: equal jitter, which keeps half of each delay fixed and has more calls in flight for the same result.
It only computes; the caller waits on its `Clock`, and bounds its attempts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

BASE_S: Final = 0.1
"""A restarted role serves again within a second, and the first attempts should reach it then."""
CAP_S: Final = 5.0
"""gRPC: 120 s, which leaves a follower stale for two minutes after a restart. 5 s: one attempt each 2.5 s a client on
average during a long outage."""
_DOUBLINGS_MAX: Final = 32


class Backoff:
    """Delays of one retry loop. Call `reset` after a success."""

    def __init__(self, random: Random, *, base_s: float = BASE_S, cap_s: float = CAP_S) -> None:
        assert 0 < base_s <= cap_s
        self._random = random
        self._base_s = base_s
        self._cap_s = cap_s
        self._failures = 0

    @property
    def failures(self) -> int:
        """Return the number of delays since the last reset."""
        return self._failures

    def next_delay_s(self, *, minimum_s: float = 0.0) -> float:
        """Return the next delay: `minimum_s` (the server's retry hint) plus 0 to min(cap, base * 2^failures)."""
        ceiling_s = min(self._cap_s, self._base_s * 2.0 ** min(self._failures, _DOUBLINGS_MAX))
        self._failures += 1
        return minimum_s + self._random.uniform(0.0, ceiling_s)

    def reset(self) -> None:
        """Start again from the base."""
        self._failures = 0
