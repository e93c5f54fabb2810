"""Quotas: how many calls and watch streams each key has in flight at this process.

I1: a counted call is given back when its task ends, in any way: answered, cancelled, disconnected, never begun; one without
a task when its answer is known. I2: a
refused call is not counted; check and count are one step on the event loop, so no race admits one too many.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import QuotaRequests, QuotaWatches
from eddyline.core.runtime.settings import KEY_REQUESTS_MAX, KEY_WATCHES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.auth.grant import Grant

REQUESTS_RETRY_MS: Final = 100
WATCHES_RETRY_MS: Final = 1_000


class Quotas:
    """Calls in flight by key. A limit of 0 = none. A role has a limit only if its own key has one."""

    def __init__(self, *, requests_max: int = KEY_REQUESTS_MAX, watches_max: int = KEY_WATCHES_MAX) -> None:
        self._requests_max = requests_max
        self._watches_max = watches_max
        self.requests: Counter[str] = Counter()
        self.watches: Counter[str] = Counter()

    def admit(self, grant: Grant, *, is_watch: bool) -> None:
        """Count the call of this task until the task ends.

        Raises:
            QuotaRequests, QuotaWatches: the key has as many in flight as its limit.
        """
        task = asyncio.current_task()
        assert task is not None, "a call is a task"
        leave = self.enter(grant, is_watch=is_watch)
        task.add_done_callback(lambda _: leave())

    def enter(self, grant: Grant, *, is_watch: bool) -> Callable[[], None]:
        """Count a call until the returned function is called, once.

        Raises:
            as `admit`.
        """
        counts = self.watches if is_watch else self.requests
        limit = self._limit(grant, is_watch=is_watch)
        name = grant.name
        if limit and counts[name] >= limit:
            raise _quota_error(name, limit, is_watch=is_watch)
        counts[name] += 1
        return partial(_leave, counts, name)

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


def _quota_error(name: str, limit: int, *, is_watch: bool) -> QuotaRequests | QuotaWatches:
    if is_watch:
        return QuotaWatches(
            f"{name}: {limit} watch streams are open at this replica, the maximum",
            principal=name,
            limit=limit,
            retryAfterMs=WATCHES_RETRY_MS,
        )
    return QuotaRequests(
        f"{name}: {limit} calls are in progress at this role, the maximum",
        principal=name,
        limit=limit,
        retryAfterMs=REQUESTS_RETRY_MS,
    )
