"""One topic in memory: identity, heads, location of its log, floors and deleted seqs, keys, writers, and waiters.

The log is its segments, then the frames of the index (of an EPHEMERAL topic: batches in memory). Parts that few topics need
are made on first use, so an idle topic does not pay for them: a store has 100 000 of them.

I1: `head_seq` <= `staged_seq`: visible, then staged. I2: a seq of a DISK or EPHEMERAL topic above `reserved_seq` is
acknowledged only after the fdatasync that covers a larger reservation. I3: `last_ts_ms` never goes back. I4: `has_records`
is True from the first staged or replayed record on that is no gap: gaps alone leave a topic empty, whatever its head.
I5: floors never go back; every seq above `floors.trim` and up to the head is in a segment, a frame of the index or the
memory, or in `uncounted`.
Threading: event loop only; the engine and recovery change it, every other part reads.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from eddyline.core.model.topic import Discard, Durability, Kind, TopicConfig, TopicInfo
from eddyline.core.records.gap import OF_SOURCE, split_gaps
from eddyline.core.records.record import Gap, Op
from eddyline.core.runtime.clock import wait_event
from eddyline.store.log.floors import Floors, earliest_seq, record_count
from eddyline.store.log.idempotency_keys import IdempotencyKeys, KeyBudget, KeyedAppend
from eddyline.store.log.index import FrameIndex
from eddyline.store.log.segments import NO_SEGMENTS, Segment, SegmentSet
from eddyline.store.log.seq_set import SeqSet
from eddyline.store.log.writers import StagedWriter, Writers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eddyline.core.records.batch import Batch
    from eddyline.core.runtime.clock import Clock
    from eddyline.store.catalog.catalog import BaseEntry
    from eddyline.store.log.index import LogTotals
    from eddyline.store.log.memory_log import MemoryLog

_GAP: Final = bytes((Op.GAP,))
RESERVATION_SEQS: Final = 65_536
"""Seqs reserved at a time. A reservation costs one 56-byte frame and one fdatasync: at 1 M records/s that is 15 a second,
in group commits that run anyway; a power failure leaves a gap of at most this many."""
NO_FLOORS: Final = Floors()


class Topic:
    """State of one topic; see the module's invariants."""

    __slots__ = (
        "_fold_lost",
        "_gate",
        "_key_budget",
        "_keys",
        "_listeners",
        "_totals",
        "_waiters",
        "_writers",
        "base",
        "base_wanted",
        "closing",
        "config",
        "config_version",
        "create_ts_ms",
        "delete_mark",
        "deleted",
        "deleted_seqs",
        "erase_due_ms",
        "floors",
        "has_records",
        "head_seq",
        "id",
        "index",
        "is_ephemeral",
        "kind",
        "last_commit_s",
        "last_ts_ms",
        "memory",
        "name",
        "next_generation",
        "oldest_ts_ms",
        "overlays",
        "record_bytes",
        "reserved_seq",
        "segmented_seq",
        "segments",
        "source",
        "staged_bytes",
        "staged_reserved_seq",
        "staged_seq",
        "unapplied",
        "uncounted",
    )

    def __init__(
        self, *, name: str, topic_id: int, kind: Kind, config: TopicConfig, create_ts_ms: int, key_budget: KeyBudget
    ) -> None:
        self.name = name
        self.id = topic_id
        self.kind = kind
        self.config = config
        self.is_ephemeral = config.durability is Durability.EPHEMERAL
        """True = its records are in memory alone, for life: no update of the configuration changes that."""
        self.config_version = 1
        self.create_ts_ms = create_ts_ms
        self.source = ""
        self.closing = False
        self.deleted = False
        self.has_records = False
        # heads
        self.staged_seq = 0
        self.head_seq = 0
        self.last_ts_ms = 0
        self.last_commit_s = 0.0
        self.reserved_seq = RESERVATION_SEQS
        self.staged_reserved_seq = RESERVATION_SEQS
        # where the log lies
        self._totals: LogTotals | None = None
        self.segments: SegmentSet = NO_SEGMENTS
        self.segmented_seq = 0
        self.next_generation = 1
        self.index = FrameIndex()
        self.memory: MemoryLog | None = None
        # floors, deleted seqs and counts
        self.floors = NO_FLOORS
        self.deleted_seqs = SeqSet()
        self.uncounted = SeqSet()
        self.record_bytes = 0
        self.staged_bytes = 0
        self.oldest_ts_ms = 0
        self.erase_due_ms = 0
        self.delete_mark = 0
        # the fold
        self.base: BaseEntry | None = None
        self.base_wanted = False
        self._fold_lost = False
        self.unapplied: list[Batch] = []
        self.overlays: list[list[Batch]] = []
        # made on first use
        self._key_budget = key_budget
        self._keys: IdempotencyKeys | None = None
        self._writers: Writers | None = None
        self._gate: asyncio.Lock | None = None
        self._waiters: list[tuple[int, asyncio.Event]] = []
        self._listeners: dict[Callable[[Topic], None], None] = {}

    def __hash__(self) -> int:
        """The id, so that sets of topics are iterated in the same order whenever a seeded simulation is repeated."""
        return self.id

    # parts -------------------------------------------------------------------------------------------------------

    @property
    def keys(self) -> IdempotencyKeys:
        """The topic's idempotency keys."""
        if self._keys is None:
            self._keys = IdempotencyKeys(self._key_budget)
        return self._keys

    @property
    def has_keys(self) -> bool:
        """True = a key is or was remembered."""
        return self._keys is not None

    @property
    def writers(self) -> Writers:
        """The topic's writers."""
        if self._writers is None:
            self._writers = Writers()
        return self._writers

    @property
    def is_gated(self) -> bool:
        """True = an append holds the gate or waits at it."""
        return self._gate is not None and self._gate.locked()

    @property
    def gate(self) -> asyncio.Lock:
        """Keeps the order of appends while keys are read for `expected_versions`."""
        if self._gate is None:
            self._gate = asyncio.Lock()
        return self._gate

    def stored_writers(self) -> list[tuple[str, StagedWriter]]:
        """Return every writer by name; moves may be in flight."""
        return self._writers.stored() if self._writers is not None else []

    def expire_writers(self, before_ms: int) -> None:
        """Drop writers that have not moved since then, except the topic's source."""
        if self._writers is not None:
            self._writers.expire(before_ms, kept=self.source)

    def remembered_keys(self) -> list[tuple[bytes, KeyedAppend]]:
        """Return idempotency keys with the outcome of their appends, in the order of their commits."""
        return self._keys.remembered() if self._keys is not None else []

    # state -------------------------------------------------------------------------------------------------------

    @property
    def folds(self) -> bool:
        """True = the topic has a fold."""
        return self.kind is Kind.KV

    @property
    def earliest_seq(self) -> int:
        """Seq of the first live record, else head + 1."""
        return earliest_seq(self.head_seq, self.floors, self.uncounted)

    @property
    def record_count(self) -> int:
        """Number of live records, without gaps."""
        return record_count(self.head_seq, self.floors, self.uncounted)

    @property
    def staged_count(self) -> int:
        """Number of live records once all staged ones are published."""
        return record_count(self.staged_seq, self.floors, self.uncounted)

    @property
    def needs_reservation(self) -> bool:
        """True = seqs are reserved ahead; those of an FSYNC topic are synced themselves."""
        return self.config.durability is not Durability.FSYNC

    @property
    def may_get_room(self) -> bool:
        """True = the topic refuses appends over its cap, and has records that expire: retention may make room."""
        return self.config.discard is Discard.REJECT and self.config.ttl_ms > 0

    def stage(self, batch: Batch, record_bytes: int) -> int:
        """Give a batch the next seqs and count it as staged; return its first seq. `record_bytes` is the batch's."""
        first_seq = self.staged_seq + 1
        self.staged_seq += batch.count
        self.staged_bytes += record_bytes
        self.hold(batch)
        if self.kind is Kind.KV and batch.count:
            placed = batch.with_seqs(first_seq, 0)
            self.unapplied.append(placed)
            for overlay in self.overlays:
                overlay.append(placed)
        return first_seq

    def hold(self, batch: Batch) -> None:
        """Note that a batch was staged or replayed: from its first record on the topic is not empty."""
        if not self.has_records and batch.count:
            self.has_records = batch.ops is None or bool(bytes(batch.ops).strip(_GAP))

    def note_gaps(self, batch: Batch) -> None:
        """Count neither the gap records of a published batch, nor the seqs that they say are lost."""
        for item in split_gaps(batch):
            if isinstance(item, Gap):
                first_seq = item.seq if item.reason in OF_SOURCE else min(item.first_seq, item.seq)
                self.not_counted(first_seq, item.seq)

    def not_counted(self, first_seq: int, last_seq: int) -> None:
        """Do not count the seqs of a range (both inclusive) as records."""
        self.uncounted.add_range(first_seq, last_seq)

    def delete_seqs(self, seqs: SeqSet) -> None:
        """Mark records as deleted on request."""
        self.deleted_seqs.update(seqs)
        self.uncounted.update(seqs)

    def change_segments(self, *, add: Sequence[Segment] = (), remove: Sequence[Segment] = ()) -> None:
        """Add and remove segments."""
        totals = self._totals
        self._count_files_in(None)
        if self.segments is NO_SEGMENTS:
            self.segments = SegmentSet()
        self.segments.change(add=add, remove=remove)
        if not len(self.segments):
            self.segments = NO_SEGMENTS
        self._count_files_in(totals)

    def count_in(self, totals: LogTotals | None) -> None:
        """Count in these totals from now on, and no longer in the previous ones; None = in none."""
        self.index.count_in(totals)
        self._count_files_in(totals)

    @property
    def fold_lost(self) -> bool:
        """True = base and log do not give the fold, and readers of it are refused."""
        return self._fold_lost

    @fold_lost.setter
    def fold_lost(self, lost: bool) -> None:
        totals = self._totals
        self._count_files_in(None)
        self._fold_lost = lost
        self._count_files_in(totals)

    def _count_files_in(self, totals: LogTotals | None) -> None:
        for counted, sign in ((self._totals, -1), (totals, 1)):
            if counted is not None:
                counted.segment_count += sign * len(self.segments)
                counted.segment_bytes += sign * self.segments.file_bytes
                counted.fold_count += sign * self.folds
                counted.lost_fold_count += sign * self._fold_lost
        self._totals = totals

    @property
    def retained_after_seq(self) -> int:
        """Rows up to this seq need not be in a file: they are below the floors, and on KV topics in the fold's base too,
        since a lost fold is rebuilt from base and log."""
        trim = self.floors.trim
        if not self.folds:
            return trim
        return min(trim, self.base.seq if self.base is not None else 0)

    def needed_rows(self, segment: Segment) -> int:
        """Count the rows of a segment that must stay on disk; its gap records count too, at any seq."""
        summary = segment.summary
        first_seq = max(summary.first_seq, self.retained_after_seq + 1)
        span = summary.last_seq - first_seq + 1
        if span <= 0:
            return 0
        return max(span - self.uncounted.count(first_seq, summary.last_seq) + summary.gap_count, 0)

    def info(self) -> TopicInfo:
        """Return the topic as readers see it."""
        return TopicInfo(
            name=self.name,
            epoch=self.id,
            kind=self.kind,
            config=self.config,
            head_seq=self.head_seq,
            earliest_seq=self.earliest_seq,
            source=self.source,
            create_ts_ms=self.create_ts_ms,
            evict_floor=self.floors.evict,
            record_count=self.record_count,
            record_bytes=self.record_bytes,
            config_version=self.config_version,
            delete_mark=self.delete_mark,
        )

    # who waits ---------------------------------------------------------------------------------------------------

    def listen(self, listener: Callable[[Topic], None]) -> None:
        """Call `listener` whenever the head moves, the configuration changes, or records or the topic are deleted."""
        self._listeners[listener] = None

    def unlisten(self, listener: Callable[[Topic], None]) -> None:
        """Stop calling `listener`."""
        del self._listeners[listener]

    def moved(self) -> None:
        """Wake waiters and listeners: the head moved, the configuration changed, or records or the topic were deleted."""
        if self._waiters:
            waiting = [(seq, event) for seq, event in self._waiters if seq > self.head_seq and not self.deleted]
            for seq, event in self._waiters:
                if seq <= self.head_seq or self.deleted:
                    event.set()
            self._waiters = waiting
        if self._listeners:
            for listener in tuple(self._listeners):
                listener(self)

    async def wait_head(self, seq: int, clock: Clock, seconds: float) -> bool:
        """Wait until the head is at `seq` or the topic is deleted, at most `seconds`. Return True if the head is there."""
        if self.head_seq >= seq or self.deleted:
            return self.head_seq >= seq
        waiter = (seq, asyncio.Event())
        self._waiters.append(waiter)
        try:
            await wait_event(clock, waiter[1], seconds)
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return self.head_seq >= seq
