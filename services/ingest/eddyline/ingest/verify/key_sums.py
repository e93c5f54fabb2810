"""Counts and hashes of two sides' keys, in constant memory: they reveal which groups of keys differ.

A key's group is 16 bits of its hash. For each group and side there is a count of keys, and an XOR of the hashes of its
keys with their values. If either differs, or a key of the group changed while the sides were read, the group's keys have
to be compared one by one. A key that is read twice makes its group's count differ, and so does one that was deleted after
it was read.

I1: groups that are not listed hold the same keys and values on both sides, but for one in 2^64 coincidences a group.
I2: 2 MiB, and at most PREFIXES_MAX prefixes, whatever is read.
Threading: event loop.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

import numpy as np
from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GROUPS: Final = 1 << 16
"""With ten million keys 150 in each, so that one key that differs costs 150 to compare. Costs 33 bytes each."""
PREFIXES_MAX: Final = 1_000
PREFIX_BYTES_MAX: Final = 64

_MASK: Final = GROUPS - 1


def group_of(key: bytes) -> int:
    """The group of a key."""
    return xxh3_64_intdigest(key) & _MASK


class SideSums:
    """Entries of one side (bucket or fold): their count, and a count and a hash for each group of keys."""

    __slots__ = ("count", "counts", "hashes")

    def __init__(self) -> None:
        self.count = 0
        self.counts = array("Q", bytes(8 * GROUPS))
        self.hashes = array("Q", bytes(8 * GROUPS))

    def add(self, key: bytes, value: bytes) -> int:
        """Add a live key; returns its group."""
        key_hash = xxh3_64_intdigest(key)
        group = key_hash & _MASK
        self.count += 1
        self.counts[group] += 1
        self.hashes[group] ^= xxh3_64_intdigest(value, key_hash)
        return group


class KeySums:
    """Sums of both sides, and the groups of which a key changed while they were read."""

    def __init__(self) -> None:
        self.bucket = SideSums()
        self.fold = SideSums()
        self._changed = bytearray(GROUPS)

    def mark_changed(self, key: bytes) -> None:
        """Note that a key changed meanwhile: its group has to be compared."""
        self._changed[group_of(key)] = 1

    def differing_groups(self, keys_max: int) -> Iterator[KeyGroup]:
        """Groups that differ, in sets of at most `keys_max` keys, or one group."""
        bucket_counts = np.frombuffer(self.bucket.counts, dtype=np.uint64)
        fold_counts = np.frombuffer(self.fold.counts, dtype=np.uint64)
        differ = bucket_counts != fold_counts
        differ |= np.frombuffer(self.bucket.hashes, dtype=np.uint64) != np.frombuffer(self.fold.hashes, dtype=np.uint64)
        differ |= np.frombuffer(self._changed, dtype=np.uint8) != 0
        sizes = np.maximum(bucket_counts, fold_counts)
        key_group = KeyGroup()
        for group in np.flatnonzero(differ).tolist():
            size = int(sizes[group])
            if key_group.group_count and key_group.key_count + size > keys_max:
                yield key_group
                key_group = KeyGroup()
            key_group.add(group, size, int(bucket_counts[group]) - int(fold_counts[group]))
        if key_group.group_count:
            yield key_group


class KeyGroup:
    """Some groups whose keys are loaded together. `key_count` = about how many; `surplus` = keys that the bucket has more
    than the fold."""

    __slots__ = ("_groups", "group_count", "key_count", "surplus")

    def __init__(self) -> None:
        self._groups = bytearray(GROUPS)
        self.group_count = 0
        self.key_count = 0
        self.surplus = 0

    def add(self, group: int, key_count: int, surplus: int) -> None:
        """Add a group."""
        self._groups[group] = 1
        self.group_count += 1
        self.key_count += key_count
        self.surplus += surplus

    def contains(self, key: bytes) -> bool:
        """Whether a key is of these groups."""
        return self._groups[xxh3_64_intdigest(key) & _MASK] == 1


class Prefixes:
    """Prefixes of keys: everything up to and with the first dot. b"" = keys without a prefix of their own."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self.counts: dict[bytes, int] = {}
        """Keys counted by `count`, by prefix."""

    def of(self, key: bytes) -> bytes:
        """A key's prefix; stable for the lifetime of this object."""
        end = key.find(b".", 0, PREFIX_BYTES_MAX) + 1
        if not end:
            return b""
        prefix = key[:end]
        if prefix not in self._known:
            if len(self._known) >= PREFIXES_MAX:
                return b""
            self._known.add(prefix)
        return prefix

    def count(self, keys: Iterable[bytes]) -> None:
        """Count keys by prefix."""
        counts = self.counts
        for key in keys:
            prefix = self.of(key)
            counts[prefix] = counts.get(prefix, 0) + 1
