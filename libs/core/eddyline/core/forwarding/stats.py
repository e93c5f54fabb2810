"""Counts of forwarded calls, by the store's shard and by outcome.

Every pair exists from the start: at most 64 shards and four outcomes. A ListTopics counts one call for each store; a
search for the shard of a source, which the role does on its own behalf, does not count.
Threading: event loop.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import Deadline, EddylineError, NotReady, StoreUnreachable
from eddyline.core.telemetry.metrics import MetricPoint

if TYPE_CHECKING:
    from collections.abc import Iterator


class Outcome(Enum):
    """End of a forwarded call."""

    OK = "ok"
    """The owner answered it to its end."""
    REFUSED = "refused"
    """The owner answered with an error."""
    UNREACHABLE = "unreachable"
    """The owner cannot be reached, disconnected during the call, or does not know this role's own key."""
    LEFT = "left"
    """The caller left, its deadline passed, or this role stops."""


OUTCOMES: Final = tuple(Outcome)


class ForwardedCalls:
    """Counts of one role. `shard_count` = the cluster's number of shards."""

    def __init__(self, shard_count: int) -> None:
        self._counts = {(shard, outcome): 0 for shard in range(shard_count) for outcome in OUTCOMES}

    def ended(self, shard: int, outcome: Outcome) -> None:
        """Count a call that was forwarded to `shard`."""
        self._counts[shard, outcome] += 1

    def points(self) -> Iterator[MetricPoint]:
        """Yield the points of the metric with the labels `shard` and `outcome`."""
        for (shard, outcome), count in self._counts.items():
            yield MetricPoint(count, (str(shard), outcome.value))


def outcome_of(error: EddylineError) -> Outcome:
    """Return the outcome of a call that this error ended."""
    if isinstance(error, Deadline):
        return Outcome.LEFT
    if error.came_as is None and isinstance(error, StoreUnreachable):
        return Outcome.UNREACHABLE
    if error.came_as is None and isinstance(error, NotReady):
        return Outcome.LEFT
    return Outcome.REFUSED
