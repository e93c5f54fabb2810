"""Which of the newest commits are traced: what a follower is told beside their records.

Held in memory alone, for as long as it takes until whoever follows has them: who reads a record later, or after a restart,
reads it untraced. So the log's format has nothing of it.
I1: at most `COMMITS_MAX` commits, none older than `AGE_S`; the oldest goes first. I2: a topic that has none takes no room.
Threading: event loop.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.telemetry.trace_context import SeqTrace

if TYPE_CHECKING:
    from eddyline.core.runtime.clock import Clock

COMMITS_MAX: Final = 2_048
"""Half a megabyte."""
AGE_S: Final = 30.0
"""A follower that is further behind than that catches up, and its spans would tell of nothing else."""
TOLD_MAX: Final = 8
"""An item's, of what may be 4 096 records: 500 B."""


class _Commit(NamedTuple):
    topic_id: int
    at_s: float
    trace: SeqTrace


class RecentTraces:
    """See the module. A topic's commits are put in the order of their seqs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._commits: deque[_Commit] = deque()
        self._by_topic: dict[int, deque[_Commit]] = {}

    def __len__(self) -> int:
        return len(self._commits)

    def put(self, topic_id: int, last_seq: int, traceparent: str) -> None:
        """A commit is visible."""
        commit = _Commit(topic_id, self._clock.monotonic_s(), SeqTrace(last_seq, traceparent))
        self._commits.append(commit)
        self._by_topic.setdefault(topic_id, deque()).append(commit)
        while len(self._commits) > COMMITS_MAX:
            self._drop_oldest()

    def within(self, topic_id: int, first_seq: int, last_seq: int) -> tuple[SeqTrace, ...]:
        """Those of a topic whose last seq is in a range, the first `TOLD_MAX` of them."""
        oldest_s = self._clock.monotonic_s() - AGE_S
        while self._commits and self._commits[0].at_s < oldest_s:
            self._drop_oldest()
        found: list[SeqTrace] = []
        for commit in self._by_topic.get(topic_id, ()):
            if commit.trace.seq > last_seq or len(found) == TOLD_MAX:
                break
            if commit.trace.seq >= first_seq:
                found.append(commit.trace)
        return tuple(found)

    def _drop_oldest(self) -> None:
        topic_id = self._commits.popleft().topic_id
        commits = self._by_topic[topic_id]
        commits.popleft()
        if not commits:
            del self._by_topic[topic_id]
