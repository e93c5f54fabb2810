"""How much each key has under way at this process: calls, and watch streams.

I1: what is counted is given back when its task is over, however that ends: answered, cancelled, disconnected, never begun.
I2: nothing is counted that was refused; check and count are one step of the loop, so that no race lets one too many in.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import QuotaRequests, QuotaWatches
from eddyline.core.runtime.settings import KEY_REQUESTS_MAX, KEY_WATCHES_MAX

if TYPE_CHECKING:
    from eddyline.core.auth.grant import Grant

REQUESTS_RETRY_MS: Final = 100
WATCHES_RETRY_MS: Final = 1_000


class Quotas:
    """The counts of one process. A bound of 0 = none. Roles have no bound but their own key's."""

    def __init__(self, *, requests_max: int = KEY_REQUESTS_MAX, watches_max: int = KEY_WATCHES_MAX) -> None:
        self._requests_max = requests_max
        self._watches_max = watches_max
        self.requests: Counter[str] = Counter()
        self.watches: Counter[str] = Counter()

    def admit(self, grant: Grant, *, is_watch: bool) -> None:
        """Count the call of this task, until the task is over.

        Raises:
            QuotaRequests, QuotaWatches.
        """
        counts = self.watches if is_watch else self.requests
        limit = self._limit(grant, is_watch=is_watch)
        name = grant.name
        if limit and counts[name] >= limit:
            raise _over(name, limit, is_watch=is_watch)
        task = asyncio.current_task()
        assert task is not None, "a call is a task"
        counts[name] += 1
        task.add_done_callback(lambda _: _leave(counts, name))

    def _limit(self, grant: Grant, *, is_watch: bool) -> int:
        own = grant.watches_max if is_watch else grant.requests_max
        if own is not None:
            return own
        if grant.is_role:
            return 0
        return self._watches_max if is_watch else self._requests_max


def _leave(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if counts[name] <= 0:
        del counts[name]


def _over(name: str, limit: int, *, is_watch: bool) -> QuotaRequests | QuotaWatches:
    if is_watch:
        return QuotaWatches(
            f"{name} has {limit} watch streams at this replica, as many as it may",
            principal=name,
            limit=limit,
            retryAfterMs=WATCHES_RETRY_MS,
        )
    return QuotaRequests(
        f"{name} has {limit} calls under way at this role, as many as it may",
        principal=name,
        limit=limit,
        retryAfterMs=REQUESTS_RETRY_MS,
    )
