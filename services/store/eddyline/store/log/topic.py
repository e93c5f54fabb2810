"""One topic in memory: identity, heads, index, keys, writers, and who waits for it.

I1: `head_seq` <= `staged_seq`: visible, then staged. I2: a seq of a DISK topic above `reserved_seq` is acknowledged only
after the fdatasync that covers a larger reservation. I3: `last_ts_ms` never goes back. I4: `has_records` is True
from the first record on that is staged or replayed and is no gap: gaps alone leave a topic empty, whatever its head.
Threading: event loop only; the engine and recovery change it, everybody else reads.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from eddyline.core.clock import wait_event
from eddyline.core.record import Op
from eddyline.core.topic import Durability, Kind, TopicConfig, TopicInfo
from eddyline.store.log.dedupe import IdempotencyKeys, KeyBudget
from eddyline.store.log.index import FrameIndex
from eddyline.store.log.writers import Writers

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.batch import Batch
    from eddyline.core.clock import Clock

_GAP: Final = bytes((Op.GAP,))
RESERVATION_SEQS: Final = 65_536
"""Seqs reserved at a time. A reservation costs one 56-byte frame and one fdatasync: at 1 M records/s that is 15 a second
beside the group commits that run anyway; power loss leaves a gap of at most this many."""


class Topic:
    """A topic's state; see the module's invariants."""

    def __init__(
        self, *, name: str, topic_id: int, kind: Kind, config: TopicConfig, create_ts_ms: int, key_budget: KeyBudget
    ) -> None:
        self.name = name
        self.id = topic_id
        self.kind = kind
        self.config = config
        self.create_ts_ms = create_ts_ms
        self.source = ""
        self.closing = False
        self.deleted = False
        self.staged_seq = 0
        self.has_records = False
        self.head_seq = 0
        self.last_ts_ms = 0
        self.last_commit_s = 0.0
        self.reserved_seq = RESERVATION_SEQS
        self.staged_reserved_seq = RESERVATION_SEQS
        self.index = FrameIndex()
        self.keys = IdempotencyKeys(key_budget)
        self.writers = Writers()
        self.unapplied: list[Batch] = []
        self.gate = asyncio.Lock()
        self.overlays: list[list[Batch]] = []
        self._waiters: list[tuple[int, asyncio.Event]] = []
        self._listeners: dict[Callable[[Topic], None], None] = {}

    @property
    def earliest_seq(self) -> int:
        """First live record's seq, else head + 1."""
        return self.index.first_seq or self.head_seq + 1

    @property
    def needs_reservation(self) -> bool:
        """True = seqs are reserved ahead; an FSYNC topic's are synced themselves."""
        return self.config.durability is Durability.DISK

    def hold(self, batch: Batch) -> None:
        """A batch is staged or replayed: from its first record on the topic is not empty."""
        if not self.has_records and batch.count:
            self.has_records = batch.ops is None or bool(bytes(batch.ops).strip(_GAP))

    def info(self) -> TopicInfo:
        """The topic as readers see it."""
        return TopicInfo(
            name=self.name,
            epoch=self.id,
            kind=self.kind,
            config=self.config,
            head_seq=self.head_seq,
            earliest_seq=self.earliest_seq,
            source=self.source,
            create_ts_ms=self.create_ts_ms,
        )

    def listen(self, listener: Callable[[Topic], None]) -> None:
        """Call `listener` whenever the head moves or the topic goes."""
        self._listeners[listener] = None

    def unlisten(self, listener: Callable[[Topic], None]) -> None:
        """Stop calling it."""
        del self._listeners[listener]

    def moved(self) -> None:
        """The head moved, or the topic went: wake who waits for that."""
        if self._waiters:
            waiting = [(seq, event) for seq, event in self._waiters if seq > self.head_seq and not self.deleted]
            for seq, event in self._waiters:
                if seq <= self.head_seq or self.deleted:
                    event.set()
            self._waiters = waiting
        for listener in tuple(self._listeners):
            listener(self)

    async def wait_head(self, seq: int, clock: Clock, seconds: float) -> bool:
        """Wait until the head is at `seq` or the topic is deleted, at most `seconds`. True = the head is there."""
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
