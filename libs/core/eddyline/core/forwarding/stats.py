"""How many calls a role has passed on to the stores they belong to, by the store's shard and by how they ended.

Every pair of the two is there from the start: at most 64 shards and four outcomes. Asking every store for its page of a list
counts as a call each; looking for the shard that has a source, which a role does by itself, does not count.
Threading: event loop.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import Deadline, EddylineError, NotReady, StoreUnreachable
from eddyline.core.telemetry.metrics import Point

if TYPE_CHECKING:
    from collections.abc import Iterator


class Outcome(Enum):
    """How a call that was passed on ended."""

    OK = "ok"
    """The owner answered it to its end."""
    REFUSED = "refused"
    """The owner answered with an error."""
    UNREACHABLE = "unreachable"
    """The owner cannot be reached, went meanwhile, or does not know this role's own key."""
    LEFT = "left"
    """Whoever called went, its time was over, or this role stops."""


OUTCOMES: Final = tuple(Outcome)


class ForwardedCalls:
    """The counts of one role. `shard_count` = of the cluster."""

    def __init__(self, shard_count: int) -> None:
        self._counts = {(shard, outcome): 0 for shard in range(shard_count) for outcome in OUTCOMES}

    def ended(self, shard: int, outcome: Outcome) -> None:
        """Count one that was passed on to `shard`."""
        self._counts[shard, outcome] += 1

    def points(self) -> Iterator[Point]:
        """As a metric of the labels `shard` and `outcome` has them."""
        for (shard, outcome), count in self._counts.items():
            yield Point(count, (str(shard), outcome.value))


def outcome_of(error: EddylineError) -> Outcome:
    """What an error that ends a call makes of it."""
    if isinstance(error, Deadline):
        return Outcome.LEFT
    if error.came_as is None and isinstance(error, StoreUnreachable):
        return Outcome.UNREACHABLE
    if error.came_as is None and isinstance(error, NotReady):
        return Outcome.LEFT
    return Outcome.REFUSED
