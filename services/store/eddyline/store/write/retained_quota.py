"""How many bytes of records a store may retain, over all its topics.

I1: nothing is staged that would take the sum above the bound: judged and counted in one step of the loop. What is counted
since the last sum is never less than what is there, since only appends add to it; where it says that there is no room the
topics are summed up anew, at most each `SUM_EVERY_S`.
A record's bytes are those that `cap_bytes` counts. What a topic with a cap would evict for an append does not make room
for it.
Threading: event loop only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.errors import QuotaBytes

if TYPE_CHECKING:
    from eddyline.core.runtime.clock import Clock
    from eddyline.store.log.table import TopicTable

SUM_EVERY_S: Final = 0.1
"""A sum over 100 000 topics takes 5 ms: a twentieth of this, and only while appends are refused."""
RETRY_AFTER_MS: Final = 1_000
"""Retention looks each second what is over."""


class RetainedQuota:
    """The bound of one store; 0 = none."""

    def __init__(self, bytes_max: int, *, table: TopicTable, clock: Clock) -> None:
        self._bytes_max = bytes_max
        self._table = table
        self._clock = clock
        self._bytes: int | None = None
        self._summed_s = 0.0

    def take(self, record_bytes: int) -> None:
        """Take room for an append that is staged in this step.

        Raises:
            QuotaBytes: there is none.
        """
        if not self._bytes_max:
            return
        if self._bytes is None or self._bytes + record_bytes > self._bytes_max:
            self._sum()
        assert self._bytes is not None, "it was summed up"
        if self._bytes + record_bytes > self._bytes_max and record_bytes:
            raise QuotaBytes(
                f"the store retains {self._bytes} bytes of records, and may {self._bytes_max}: delete records or topics, or"
                " give topics a cap or a TTL",
                retainedBytes=self._bytes,
                limitBytes=self._bytes_max,
                retryAfterMs=RETRY_AFTER_MS,
            )
        self._bytes += record_bytes

    def _sum(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._bytes is None or now_s - self._summed_s >= SUM_EVERY_S:
            self._bytes = sum(topic.staged_bytes for topic in self._table.all())
            self._summed_s = now_s
