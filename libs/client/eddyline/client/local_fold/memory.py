"""The live values of a local fold in memory: by key, and in byte order of the keys for ranges.

A plain dict of entry bytes; the order is made at the first range and kept up from then on. Bounded: what a change would
take it above `memory_bytes_max` is refused before anything of it is taken.
Threading: changed by one task; other threads may only read, while nothing changes it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from eddyline.client.local_fold.frame import ITEM
from eddyline.core.errors import MemoryFull

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eddyline.client.local_fold.frame import Change

KEY_OVERHEAD_BYTES: Final = 180
"""Memory that CPython takes for a key on top of its bytes and its entry's: two objects' heads of 33 bytes, and at worst
110 of the dict's table. The order takes 8 to 16 more, from the first range on."""
_STALE_KEYS_MIN: Final = 1_000


class FoldMap:
    """The live entries; see the module's docstring."""

    def __init__(self, memory_bytes_max: int) -> None:
        self.entries: dict[bytes, bytes] = {}
        self._memory_bytes_max = memory_bytes_max
        self._content_bytes = 0
        self._order: list[bytes] | None = None
        self._unordered: list[bytes] = []

    @property
    def live_bytes(self) -> int:
        """Bytes of the live keys' items in a file."""
        return self._content_bytes + ITEM.size * len(self.entries)

    @property
    def memory_bytes(self) -> int:
        """Its memory in bytes, as the bound counts it."""
        return self._content_bytes + KEY_OVERHEAD_BYTES * len(self.entries)

    def measure(self) -> None:
        """Count again, after the caller filled `entries`.

        Raises:
            MemoryFull: they are more than is allowed.
        """
        self._content_bytes = sum(map(len, self.entries)) + sum(map(len, self.entries.values()))
        self._order = None
        self._unordered.clear()
        self._check(self.memory_bytes)

    def growth(self, changes: Sequence[Change]) -> int:
        """By how much changes would move what the entries' bytes and keys take; negative = less.

        Raises:
            MemoryFull: that would be more than is allowed.
        """
        last = dict(changes)
        grown = keys = 0
        for key, entry in last.items():
            old = self.entries.get(key)
            if old is not None:
                grown -= len(key) + len(old)
                keys -= 1
            if entry is not None:
                grown += len(key) + len(entry)
                keys += 1
        if grown > 0 or keys > 0:
            self._check(self.memory_bytes + grown + KEY_OVERHEAD_BYTES * keys)
        return grown

    def apply(self, changes: Sequence[Change], growth: int) -> None:
        """Take changes, in order; `growth` is what the method of that name gave of them."""
        entries, ordered = self.entries, self._order is not None
        for key, entry in changes:
            if entry is None:
                entries.pop(key, None)
            else:
                if ordered and key not in entries:
                    self._unordered.append(key)
                entries[key] = entry
        self._content_bytes += growth
        if len(self._unordered) > len(entries) + _STALE_KEYS_MIN:
            self._order = None
            self._unordered.clear()

    def clear(self) -> None:
        """Forget all."""
        self.entries = {}
        self.measure()

    def range(self, key_prefix: bytes, after_key: bytes, limit: int) -> Iterator[bytes]:
        """Live keys with a prefix, above `after_key`, in byte order; `limit` 0 = all. Nothing may change in between."""
        order = self._ordered()
        at = max(bisect_left(order, key_prefix), bisect_right(order, after_key) if after_key else 0)
        left = limit or len(order)
        while at < len(order) and left and order[at].startswith(key_prefix):
            if order[at] in self.entries:
                yield order[at]
                left -= 1
            at += 1

    def _ordered(self) -> list[bytes]:
        """All live keys in order, and some that are not live."""
        order = self._order
        if order is None or len(order) + len(self._unordered) > 2 * len(self.entries) + _STALE_KEYS_MIN:
            order = sorted(self.entries)
        elif self._unordered:
            # Two runs in order, which a merge sort takes as such; a key that went and came back is in both.
            order += sorted(set(self._unordered))
            order.sort()
            order = list(dict.fromkeys(order))
        self._order = order
        self._unordered.clear()
        return order

    def _check(self, memory_bytes: int) -> None:
        if memory_bytes > self._memory_bytes_max:
            raise MemoryFull(
                f"the local fold would take {memory_bytes} bytes of memory, above its bound of {self._memory_bytes_max}: "
                "raise the bound, or keep fewer keys (key_prefixes)"
            )
