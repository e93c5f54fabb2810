"""Whether an append may come in: what waits for the disk and for the fold, memory, disk space, topics.

Everything here is judged before a seq is assigned, so every refusal is definite. Limits of queues are constants of the
store; what fits it to a machine is a setting.
Threading: event loop only.

How many bytes of records a store may retain, over all its topics.

I1: nothing is staged that would take the sum above the bound: judged and counted in one step of the loop. What is counted
since the last sum is never less than what is there, since only appends add to it; where it says that there is no room the
topics are summed up anew, at most each `SUM_EVERY_S`.
A record's bytes are those that `cap_bytes` counts. What a topic with a cap would evict for an append does not make room
for it.
Threading: event loop only.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import ApplyLag, DiskFloor, MemoryFull, QuotaBytes, QuotaTopics, Throttled
from eddyline.core.model.topic import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from eddyline.core.runtime.clock import Clock
    from eddyline.store.log.table import TopicTable
    from eddyline.store.log.topic import Topic
    from eddyline.store.write.fold_apply import FoldApplier
    from eddyline.store.write.group_commit import GroupCommitter


STAGED_APPENDS_MAX: Final = 65_536
STAGED_BYTES_MAX: Final = 64 << 20
APPLY_LAG_RECORDS_MAX: Final = 65_536
APPLY_LAG_BYTES_MAX: Final = 64 << 20
"""Bounds of what waits for the disk and for the fold. 64 MiB is a second of a slow disk; two of them are what a store
may hold of appends not yet acknowledged, whatever its clients do. With several WAL shards the bound is over all."""
DISK_FLOOR: Final = "DISK_FLOOR"
"""What the status says where the disk has too little free."""
SHORTAGE: Final = "SHORTAGE"
"""What the status says where the log's writer waits for descriptors or memory."""
RETRY_AFTER_MS: Final = 100
UNSEEN_PART: Final = 4
"""What may be taken between two looks at the disk, of what is free above its floor: every byte is written to the log and
once more when it is sealed, and as much may be under way."""
FULL_RETRY_AFTER_MS: Final = 1_000
"""A full disk or memory empties by retention, merges or an operator: not within a group commit."""


class AdmissionControl:
    """The limits of one store and how far each is used."""

    def __init__(self, *, topics_max: int, unsegmented_bytes_max: int, memory_bytes_max: int) -> None:
        self._topics_max = topics_max
        self._topics_under_way: set[object] = set()
        self._unsegmented_bytes_max = unsegmented_bytes_max
        self._memory_bytes_max = memory_bytes_max
        self.failed_reason = ""
        """Why nothing is written until a restart; empty = it is."""
        self.disk_is_low = False
        self.disk_free_bytes = 0
        self.wal_bytes = 0
        """What the files of the log take of the disk, as last looked."""
        self._disk_room_bytes = 0
        self._placed_bytes: dict[GroupCommitter, int] = {}
        self.refused_by_disk = asyncio.Event()
        """Set with each refusal by the disk's floor: whoever watches the disk looks again."""
        self.unsegmented_bytes = 0
        """Bytes of WAL files that are kept, as last looked: what sealing has not caught up with."""
        self.memory_is_full = False
        """The whole process holds more than it may."""
        self.resident_bytes = 0
        self.memory_bytes = 0
        """Bytes of EPHEMERAL records."""

    def check_append(self, topic: Topic, committer: GroupCommitter, applier: FoldApplier) -> None:
        """Judge an append by everything that is bounded.

        Raises:
            Throttled, ApplyLag, DiskFloor, MemoryFull.
        """
        if self.memory_is_full:
            raise memory_full()
        if len(committer.staged) >= STAGED_APPENDS_MAX or committer.staged_bytes >= STAGED_BYTES_MAX:
            raise Throttled("too many appends wait for the disk", retryAfterMs=RETRY_AFTER_MS)
        if topic.kind is Kind.KV and (
            applier.lag_records >= APPLY_LAG_RECORDS_MAX or applier.lag_bytes >= APPLY_LAG_BYTES_MAX
        ):
            raise ApplyLag("the fold is too far behind", retryAfterMs=RETRY_AFTER_MS)
        if topic.is_ephemeral:
            if self.memory_bytes >= self._memory_bytes_max:
                raise MemoryFull(
                    f"EPHEMERAL topics hold {self.memory_bytes} bytes, as many as they may: delete records, or set a cap",
                    memoryBytesMax=self._memory_bytes_max,
                    retryAfterMs=FULL_RETRY_AFTER_MS,
                )
            return
        if committer.wal.short_of:
            raise Throttled(
                f"the log waits for a resource: {committer.wal.short_of}; appends go on by themselves",
                retryAfterMs=FULL_RETRY_AFTER_MS,
            )
        self.check_disk()
        self._check_pace(committer)
        if self.unsegmented_bytes >= self._unsegmented_bytes_max:
            raise Throttled(
                f"{self.unsegmented_bytes} bytes of log wait to be sealed, as many as may",
                unsegmentedBytesMax=self._unsegmented_bytes_max,
                retryAfterMs=FULL_RETRY_AFTER_MS,
            )

    def check_disk(self) -> None:
        """Raises DiskFloor where the disk has less free than its floor."""
        if self.disk_is_low:
            self.refused_by_disk.set()
            raise DiskFloor(
                f"the disk has {self.disk_free_bytes} bytes free, below the configured floor: free space, delete "
                "records or topics; appends go on by themselves then",
                diskFreeBytes=self.disk_free_bytes,
                retryAfterMs=FULL_RETRY_AFTER_MS,
            )

    def looked_at_disk(self, free_bytes: int, floor_bytes: int, *, is_low: bool) -> None:
        """The disk has so much free, at least when this is called."""
        self.disk_free_bytes, self.disk_is_low = free_bytes, is_low
        self._disk_room_bytes = free_bytes - floor_bytes if floor_bytes else 1 << 62
        self._placed_bytes.clear()

    def _check_pace(self, committer: GroupCommitter) -> None:
        """Judge an append by what was taken since the disk was last looked at.

        Raises:
            Throttled: that is so much of what was free above the floor that nobody knows whether the rest is there.
        """
        placed_bytes = committer.wal.placed_bytes + committer.staged_bytes
        taken_bytes = placed_bytes - self._placed_bytes.setdefault(committer, placed_bytes)
        if taken_bytes > self._disk_room_bytes // UNSEEN_PART:
            self.refused_by_disk.set()
            raise Throttled("the disk is nearly at its floor, and is looked at first", retryAfterMs=RETRY_AFTER_MS)

    def count_memory(self, record_bytes: int) -> None:
        """EPHEMERAL records came (or, below 0, went)."""
        self.memory_bytes += record_bytes

    @contextmanager
    def topic_room(self, table: TopicTable) -> Iterator[Callable[[Topic], None]]:
        """Room for one topic more, while it is made: what is given adds it to the table.

        Raises:
            QuotaTopics: there is none, those counted that are being made.
        """
        if self._topics_max and len(table) + len(self._topics_under_way) >= self._topics_max:
            raise QuotaTopics(
                f"the store has {self._topics_max} topics, as many as it may",
                topicsMax=self._topics_max,
                retryAfterMs=FULL_RETRY_AFTER_MS,
            )
        room = object()
        self._topics_under_way.add(room)

        def add(topic: Topic) -> None:
            self._topics_under_way.discard(room)
            table.add(topic)

        try:
            yield add
        finally:
            self._topics_under_way.discard(room)

    def pressure(self, committers: Sequence[GroupCommitter], applier: FoldApplier) -> float:
        """How near the nearest limit is: 0 to 1, and above it for a moment."""
        staged_count = max(len(committer.staged) for committer in committers)
        staged_bytes = max(committer.staged_bytes for committer in committers)
        return max(
            staged_count / STAGED_APPENDS_MAX,
            staged_bytes / STAGED_BYTES_MAX,
            applier.lag_records / APPLY_LAG_RECORDS_MAX,
            applier.lag_bytes / APPLY_LAG_BYTES_MAX,
        )


def memory_full() -> MemoryFull:
    """The refusal of a store that holds as much as it may."""
    return MemoryFull(
        "the store holds as much memory as it may; appends go on by themselves", retryAfterMs=FULL_RETRY_AFTER_MS
    )


SUM_EVERY_S: Final = 0.1
"""A sum over 100 000 topics takes 5 ms: a twentieth of this, and only while appends are refused."""
QUOTA_RETRY_AFTER_MS: Final = 1_000
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
                retryAfterMs=QUOTA_RETRY_AFTER_MS,
            )
        self._bytes += record_bytes

    def _sum(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._bytes is None or now_s - self._summed_s >= SUM_EVERY_S:
            self._bytes = sum(topic.staged_bytes for topic in self._table.all())
            self._summed_s = now_s
