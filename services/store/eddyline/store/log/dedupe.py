"""Idempotency keys of one topic: what each append with a key had become.

A key is remembered for the topic's window by commit time, at most `KEYS_MAX` a topic, oldest dropped first and counted.
The marks of the frames rebuild it on replay, so a retry across a restart is answered by the first append.
Threading: event loop only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import IdempotencyConflict

if TYPE_CHECKING:
    import asyncio

    from eddyline.core.store_link import AppendResult

KEYS_MAX: Final = 100_000
"""A key costs about 300 bytes here: 30 MB for the busiest topic, and 800 keys a second over the default window."""


class KeyedAppend(NamedTuple):
    """A committed append, by its key."""

    content_hash: bytes
    first_seq: int
    last_seq: int
    ts_ms: int


class PendingAppend(NamedTuple):
    """A staged append, by its key: `ack` resolves when it is visible."""

    content_hash: bytes
    ack: asyncio.Future[AppendResult]


class IdempotencyKeys:
    """The keys of one topic."""

    __slots__ = ("_done", "_pending", "dropped_count")

    def __init__(self) -> None:
        self._done: OrderedDict[bytes, KeyedAppend] = OrderedDict()
        self._pending: dict[bytes, PendingAppend] = {}
        self.dropped_count = 0

    def find(
        self, key: bytes, content_hash: bytes, *, now_ms: int, window_ms: int
    ) -> KeyedAppend | PendingAppend | None:
        """The append that had this key, staged or committed within the window.

        Raises:
            IdempotencyConflict: the key stands for other content.
        """
        self.expire(now_ms, window_ms)
        known = self._pending.get(key) or self._done.get(key)
        if known is not None and known.content_hash != content_hash:
            raise IdempotencyConflict("the idempotency key was used for other content", field="idempotency_key")
        return known

    def stage(self, key: bytes, content_hash: bytes, ack: asyncio.Future[AppendResult]) -> None:
        """Remember an append that is under way."""
        self._pending[key] = PendingAppend(content_hash, ack)

    def forget(self, key: bytes) -> None:
        """Drop an append that failed."""
        self._pending.pop(key, None)

    def commit(self, key: bytes, done: KeyedAppend) -> None:
        """Remember a committed append."""
        self._pending.pop(key, None)
        self._done.pop(key, None)
        self._done[key] = done
        if len(self._done) > KEYS_MAX:
            self._done.popitem(last=False)
            self.dropped_count += 1

    def expire(self, now_ms: int, window_ms: int) -> None:
        """Drop keys whose window is over."""
        while self._done:
            key = next(iter(self._done))
            if now_ms - self._done[key].ts_ms <= window_ms:
                return
            del self._done[key]
