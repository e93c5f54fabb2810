"""Periodic sync: fdatasyncs the writes of DISK topics, and gives back reservations of idle topics.

Threading: one task on the event loop.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from eddyline.core.runtime.clock import sleep

if TYPE_CHECKING:
    from eddyline.store.log.topic import Topic
    from eddyline.store.write.engine import Engine

RESERVATION_IDLE_S: Final = 10.0
"""A topic idle for so long gives its reservation back, so that a power failure leaves no gap in it."""
GIVE_BACK_TOPICS_MAX: Final = 1_000
"""Topics a round: 56 KB of frames in one group, which delays appends only briefly."""


class PeriodicSync:
    """The shard's periodic task."""

    def __init__(self, engine: Engine, *, sync_interval_ms: int) -> None:
        self._engine = engine
        self._interval_s = sync_interval_ms / 1000

    async def run(self) -> None:
        """Run a round every `sync_interval_ms`, until cancelled."""
        while True:
            await sleep(self._engine.clock, self._interval_s)
            await self.round()

    async def round(self) -> None:
        """Sync all WAL shards, then give back the reservations of idle, synced topics."""
        for committer in self._engine.committers:
            await committer.sync()
        if self._engine.read_only_reason:
            return
        now_s = self._engine.clock.monotonic_s()
        reserved = self._engine.table.reserved
        used_up = [topic for topic in reserved if topic.staged_reserved_seq <= topic.staged_seq]
        reserved.difference_update(used_up)
        idle = list(islice((topic for topic in reserved if _gives_back(topic, now_s)), GIVE_BACK_TOPICS_MAX))
        for topic in idle:
            self._engine.reserve(topic, topic.staged_seq)
        reserved.difference_update(idle)


def _gives_back(topic: Topic, now_s: float) -> bool:
    return (
        topic.needs_reservation
        and topic.staged_reserved_seq > topic.staged_seq
        and topic.reserved_seq == topic.staged_reserved_seq
        and topic.head_seq == topic.staged_seq
        and now_s - topic.last_commit_s > RESERVATION_IDLE_S
    )
