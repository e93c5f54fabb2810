"""Idempotency keys of one topic, each with the outcome of its append.

A key is remembered for the topic's window by commit time, at most `KEYS_MAX` a topic and `KEY_BYTES_MAX` a store; the
oldest is dropped first and counted. Replay rebuilds the keys from the frames' append marks, so a retry across a restart
gets the answer of the first append.
Threading: event loop only.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import IdempotencyConflict

if TYPE_CHECKING:
    from eddyline.store.log.append import Ack

KEYS_MAX: Final = 100_000
"""A key costs about 300 bytes here: 30 MB for the busiest topic, and 800 keys a second over the default window."""


KEY_BYTES_MAX: Final = 64 << 20
KEY_OVERHEAD_BYTES: Final = 300
"""Cost of a remembered key without its own bytes (dictionary entry, hash, numbers); measured with tracemalloc."""


class KeyedAppend(NamedTuple):
    """A committed append, by its key."""

    content_hash: bytes
    first_seq: int
    last_seq: int
    ts_ms: int


class PendingAppend(NamedTuple):
    """A staged append, by its key: `ack` resolves when it is visible."""

    content_hash: bytes
    ack: Ack


class KeyBudget:
    """The bound on all keys of a store, and their order by age."""

    def __init__(self, bytes_max: int = KEY_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._count = 0
        self._oldest: deque[_Remembered] = deque()
        self.dropped_count = 0

    def add(self, owner: IdempotencyKeys, key: bytes, done: KeyedAppend) -> None:
        """Add a key; beyond the bound the oldest keys of any topic are dropped."""
        self._oldest.append(_Remembered(owner, key, done))
        self._count += 1
        self._bytes += KEY_OVERHEAD_BYTES + len(key)
        while self._bytes > self._bytes_max:
            oldest = self._oldest.popleft()
            if oldest.owner.drop(oldest.key, oldest.done):
                self.dropped_count += 1
        if len(self._oldest) > 2 * self._count + 1_000:  # most of them were dropped by their topics before
            self._oldest = deque(kept for kept in self._oldest if kept.owner.has(kept.key, kept.done))

    def remove(self, key: bytes) -> None:
        """Remove a key that its topic dropped."""
        self._count -= 1
        self._bytes -= KEY_OVERHEAD_BYTES + len(key)


class IdempotencyKeys:
    """The keys of one topic."""

    __slots__ = ("_budget", "_done", "_pending")

    def __init__(self, budget: KeyBudget) -> None:
        self._budget = budget
        self._done: OrderedDict[bytes, KeyedAppend] = OrderedDict()
        self._pending: dict[bytes, PendingAppend] = {}

    def find(
        self, key: bytes, content_hash: bytes, *, now_ms: int, window_ms: int
    ) -> KeyedAppend | PendingAppend | None:
        """Return the append that had this key, staged or committed within the window.

        Raises:
            IdempotencyConflict: the key stands for other content.
        """
        self.expire(now_ms, window_ms)
        existing = self._pending.get(key) or self._done.get(key)
        if existing is not None and existing.content_hash != content_hash:
            raise IdempotencyConflict("the idempotency key was used for other content", field="idempotency_key")
        return existing

    def stage(self, key: bytes, content_hash: bytes, ack: Ack) -> None:
        """Remember an append in flight."""
        self._pending[key] = PendingAppend(content_hash, ack)

    def commit(self, key: bytes, done: KeyedAppend) -> None:
        """Remember a committed append."""
        self._pending.pop(key, None)
        self._forget(key)
        self._done[key] = done
        self._budget.add(self, key, done)
        if len(self._done) > KEYS_MAX:
            self._forget(next(iter(self._done)))
            self._budget.dropped_count += 1

    def expire(self, now_ms: int, window_ms: int) -> None:
        """Drop keys whose window is over."""
        while self._done:
            key = next(iter(self._done))
            if now_ms - self._done[key].ts_ms <= window_ms:
                return
            self._forget(key)

    def remembered(self) -> list[tuple[bytes, KeyedAppend]]:
        """Return all committed keys, the oldest first."""
        return list(self._done.items())

    def clear(self) -> None:
        """Drop all keys: the topic is gone."""
        for key in tuple(self._done):
            self._forget(key)

    def has(self, key: bytes, done: KeyedAppend) -> bool:
        """True = this very append is remembered by this key."""
        return self._done.get(key) is done

    def drop(self, key: bytes, done: KeyedAppend) -> bool:
        """Drop this very append before its window is over; False = it was dropped before."""
        if not self.has(key, done):
            return False
        self._forget(key)
        return True

    def _forget(self, key: bytes) -> None:
        if self._done.pop(key, None) is not None:
            self._budget.remove(key)


class _Remembered(NamedTuple):
    owner: IdempotencyKeys
    key: bytes
    done: KeyedAppend
