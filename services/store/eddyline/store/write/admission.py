"""Admission control: refuses an append when a queue, the fold's lag, memory, the disk or the retained bytes are at their
limit.

Every check runs before a seq is assigned, so every refusal is definite. Limits of queues are constants of the store; limits
that fit it to a machine are settings.

`RetainedQuota` bounds the record bytes that a store retains, over all its topics.
I1: no append is staged that would take the sum above the bound: check and count are one step of the event loop. The running
count never is below the real sum, since only appends add to it; when it leaves no room the topics are summed again, at most
every `SUM_EVERY_S`. Bytes are those of `cap_bytes`. Records that a topic's cap would evict for an append make no room for
it.
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
"""Bounds of the queues to the disk and to the fold. 64 MiB is a second of a slow disk; two of them are all that a store with
one WAL shard holds of unacknowledged appends, whatever its clients do. Each WAL shard's queue has this bound."""
DISK_FLOOR: Final = "DISK_FLOOR"
"""Status reason: the disk has less free space than its floor."""
SHORTAGE: Final = "SHORTAGE"
"""Status reason: the WAL's writer waits for descriptors or memory."""
RETRY_AFTER_MS: Final = 100
UNSEEN_PART: Final = 4
"""Divisor: between two polls of the disk appends may take a quarter of the space above its floor. Every byte is written to
the log and once more when it is sealed, and as much may be in flight."""
FULL_RETRY_AFTER_MS: Final = 1_000
"""A full disk or memory is emptied by retention, merges or an operator: not within a group commit."""


class AdmissionControl:
    """The limits of one store and how much of each is in use."""

    def __init__(self, *, topics_max: int, unsegmented_bytes_max: int, memory_bytes_max: int) -> None:
        self._topics_max = topics_max
        self._topics_under_way: set[object] = set()
        self._unsegmented_bytes_max = unsegmented_bytes_max
        self._memory_bytes_max = memory_bytes_max
        self.failed_reason = ""
        """Why writes are refused until a restart; empty = they are not."""
        self.disk_is_low = False
        self.disk_free_bytes = 0
        self.wal_bytes = 0
        """Bytes of the WAL's files on the disk, at the last poll."""
        self._disk_room_bytes = 0
        self._placed_bytes: dict[GroupCommitter, int] = {}
        self.refused_by_disk = asyncio.Event()
        """Set with each refusal by the disk's floor: the disk guard then polls again."""
        self.unsegmented_bytes = 0
        """Bytes of WAL files that are still needed, at the last check: sealing has not caught up with them."""
        self.memory_is_full = False
        """The whole process holds more than its bound."""
        self.resident_bytes = 0
        self.memory_bytes = 0
        """Bytes of EPHEMERAL records."""

    def check_append(self, topic: Topic, committer: GroupCommitter, applier: FoldApplier) -> None:
        """Check an append against every limit.

        Raises:
            Throttled, ApplyLag, DiskFloor, MemoryFull.
        """
        if self.memory_is_full:
            raise memory_full()
        if len(committer.staged) >= STAGED_APPENDS_MAX or committer.staged_bytes >= STAGED_BYTES_MAX:
            raise Throttled("too many appends are waiting for the disk", retryAfterMs=RETRY_AFTER_MS)
        if topic.kind is Kind.KV and (
            applier.lag_records >= APPLY_LAG_RECORDS_MAX or applier.lag_bytes >= APPLY_LAG_BYTES_MAX
        ):
            raise ApplyLag("the fold is too far behind the log", retryAfterMs=RETRY_AFTER_MS)
        if topic.is_ephemeral:
            if self.memory_bytes >= self._memory_bytes_max:
                raise MemoryFull(
                    f"EPHEMERAL topics hold {self.memory_bytes} bytes, of at most {self._memory_bytes_max}: delete "
                    "records, or set a cap",
                    memoryBytesMax=self._memory_bytes_max,
                    retryAfterMs=FULL_RETRY_AFTER_MS,
                )
            return
        if committer.wal.short_of:
            raise Throttled(
                f"the log lacks a resource: {committer.wal.short_of}; appends resume automatically",
                retryAfterMs=FULL_RETRY_AFTER_MS,
            )
        self.check_disk()
        self._check_pace(committer)
        if self.unsegmented_bytes >= self._unsegmented_bytes_max:
            raise Throttled(
                f"{self.unsegmented_bytes} bytes of log are not sealed yet, of at most {self._unsegmented_bytes_max}",
                unsegmentedBytesMax=self._unsegmented_bytes_max,
                retryAfterMs=FULL_RETRY_AFTER_MS,
            )

    def check_disk(self) -> None:
        """Refuse if the disk has less free space than its floor.

        Raises:
            DiskFloor.
        """
        if self.disk_is_low:
            self.refused_by_disk.set()
            raise DiskFloor(
                f"the disk has {self.disk_free_bytes} bytes free, below the configured floor: free space, or delete "
                "records or topics; appends then resume automatically",
                diskFreeBytes=self.disk_free_bytes,
                retryAfterMs=FULL_RETRY_AFTER_MS,
            )

    def set_disk(self, free_bytes: int, floor_bytes: int, *, is_low: bool) -> None:
        """Store the result of a poll of the disk: at least `free_bytes` are free when this is called."""
        self.disk_free_bytes, self.disk_is_low = free_bytes, is_low
        self._disk_room_bytes = free_bytes - floor_bytes if floor_bytes else 1 << 62
        self._placed_bytes.clear()

    def _check_pace(self, committer: GroupCommitter) -> None:
        """Check an append against the bytes taken since the last poll of the disk.

        Raises:
            Throttled: they may have used up the space above the floor.
        """
        placed_bytes = committer.wal.placed_bytes + committer.staged_bytes
        taken_bytes = placed_bytes - self._placed_bytes.setdefault(committer, placed_bytes)
        if taken_bytes > self._disk_room_bytes // UNSEEN_PART:
            self.refused_by_disk.set()
            raise Throttled(
                "the disk is nearly at its floor: its free space is measured first", retryAfterMs=RETRY_AFTER_MS
            )

    def count_memory(self, record_bytes: int) -> None:
        """Count EPHEMERAL records in (below 0: out)."""
        self.memory_bytes += record_bytes

    @contextmanager
    def topic_room(self, table: TopicTable) -> Iterator[Callable[[Topic], None]]:
        """Reserve room for one topic while it is created; yields a function that adds it to the table.

        Raises:
            QuotaTopics: there is no room, topics being created included.
        """
        if self._topics_max and len(table) + len(self._topics_under_way) >= self._topics_max:
            raise QuotaTopics(
                f"the store has {self._topics_max} topics, the maximum",
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
        """Return how near the nearest limit is: 0 to 1, above it for moments."""
        staged_count = max(len(committer.staged) for committer in committers)
        staged_bytes = max(committer.staged_bytes for committer in committers)
        return max(
            staged_count / STAGED_APPENDS_MAX,
            staged_bytes / STAGED_BYTES_MAX,
            applier.lag_records / APPLY_LAG_RECORDS_MAX,
            applier.lag_bytes / APPLY_LAG_BYTES_MAX,
        )


def memory_full() -> MemoryFull:
    """Return the refusal of a store whose memory is full."""
    return MemoryFull(
        "the store has reached its memory limit; appends resume automatically", retryAfterMs=FULL_RETRY_AFTER_MS
    )


SUM_EVERY_S: Final = 0.1
"""A sum over 100 000 topics takes 5 ms: a twentieth of this, and only while appends are refused."""
QUOTA_RETRY_AFTER_MS: Final = 1_000
"""Retention enforces caps and TTLs every second."""


class RetainedQuota:
    """The bound on retained record bytes of one store; 0 = none."""

    def __init__(self, bytes_max: int, *, table: TopicTable, clock: Clock) -> None:
        self._bytes_max = bytes_max
        self._table = table
        self._clock = clock
        self._bytes: int | None = None
        self._summed_s = 0.0

    def take(self, record_bytes: int) -> None:
        """Take room for an append that is staged in this step of the event loop.

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
                f"the store retains {self._bytes} bytes of records, of at most {self._bytes_max}: delete records or "
                "topics, or give topics a cap or a TTL",
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
