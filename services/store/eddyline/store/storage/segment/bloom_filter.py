"""Bloom filter over the distinct cells of a column: excludes segments that do not hold a key or a tag.

Ten bits for each distinct cell and seven probes: about 0.8 % false positives. FORMAT.md's section "Key filter" has the
grammar and the hash, which is part of it.

I1: a cell that was added is never denied. I2: equal sets of cells give equal filters, whatever their order.
The hash is MurmurHash64A (Austin Appleby, 2008), because it runs over a whole column in numpy, which releases the GIL;
xxh3 would be called from Python for each key, and hold it. It does not resist keys chosen to collide: those cost reads,
never wrong answers. The count of distinct cells is the count of distinct hashes.
Threading: `KeyFilter` is immutable; a builder has one owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from eddyline.core.records.column import offset_array, presence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eddyline.core.records.column import Column

BITS_EACH: Final = 10
"""Bits for each distinct cell. Default in RocksDB: 10, with 0.8 % false positives; 15 would give 0.1 % and make each
footer half as large again."""
PROBES: Final = 7
"""The best number at 10 bits: 10 * ln 2."""
CELLS_MAX: Final = 1 << 20
"""Distinct cells for which a filter is built: four segments' records, 1.3 MB of bits, 8 MiB of hashes while it is
built. A base of more keys gets a filter that denies nothing; its key bounds still do."""

_WORD: Final = 8
_MULTIPLIER: Final = 0xC6A4_A793_5BD1_E995
_SHIFT: Final = 47
_MASK_64: Final = (1 << 64) - 1
_MASK_32: Final = (1 << 32) - 1
_HALF: Final = np.uint64(32)
_WORD_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], dtype=np.uint64)


class KeyFilter(NamedTuple):
    """Filter over `cell_count` distinct cells; if `bits` is empty, that is an upper bound and no cell is denied."""

    cell_count: int
    bits: bytes

    def may_hold(self, cell: bytes) -> bool:
        """Return False if this cell was never added."""
        if not self.bits:
            return self.cell_count > 0
        size = 8 * len(self.bits)
        digest = hash_cell(cell)
        position, step = digest & _MASK_32, digest >> 32 | 1
        for _ in range(PROBES):
            bit = position % size
            if not self.bits[bit >> 3] >> (bit & 7) & 1:
                return False
            position += step
        return True


class FilterBuilder:
    """Collects the hashes of a segment's cells, batch by batch."""

    def __init__(self, *, cells_max: int = CELLS_MAX) -> None:
        self._cells_max = cells_max
        self._hashes = np.empty(0, dtype=np.uint64)
        self._pending: list[NDArray[np.uint64]] = []
        self._pending_count = 0
        self._uncounted = 0

    def add(self, column: Column | None, count: int) -> None:
        """Add the present cells of a column of `count` cells."""
        if column is None:
            return
        hashes = _distinct(hash_cells(column, count))
        if self._uncounted:
            self._uncounted += len(hashes)
            return
        self._pending.append(hashes)
        self._pending_count += len(hashes)
        if self._pending_count > self._cells_max:
            self._merge()

    def finish(self) -> KeyFilter:
        """Build the filter over all added cells."""
        self._merge()
        if self._uncounted:
            return KeyFilter(self._uncounted, b"")
        return KeyFilter(len(self._hashes), _bits_of(self._hashes))

    def _merge(self) -> None:
        if self._pending:
            self._hashes = _distinct(np.concatenate([self._hashes, *self._pending]))
            self._pending, self._pending_count = [], 0
        if len(self._hashes) > self._cells_max:
            self._uncounted = len(self._hashes)
            self._hashes = np.empty(0, dtype=np.uint64)


def hash_cell(cell: bytes) -> int:
    """Return the hash of one cell: MurmurHash64A, seed 0."""
    digest = len(cell) * _MULTIPLIER & _MASK_64
    for start in range(0, len(cell), _WORD):
        word = int.from_bytes(cell[start : start + _WORD], "little")
        if start + _WORD <= len(cell):
            word = word * _MULTIPLIER & _MASK_64
            word = (word ^ word >> _SHIFT) * _MULTIPLIER & _MASK_64
        digest = (digest ^ word) * _MULTIPLIER & _MASK_64
    digest = (digest ^ digest >> _SHIFT) * _MULTIPLIER & _MASK_64
    return digest ^ digest >> _SHIFT


def hash_cells(column: Column, count: int) -> NDArray[np.uint64]:
    """Return the hash of each present cell; computed one word of all cells at a time."""
    offsets = offset_array(column.offsets).astype(np.int64)
    starts, sizes = offsets[:-1], np.diff(offsets)
    if column.validity is not None:
        present = presence(column, count)
        starts, sizes = starts[present], sizes[present]
    padded = bytes(column.values) + bytes(_WORD)
    words = np.ndarray((len(padded) - _WORD + 1,), dtype="<u8", buffer=padded, strides=(1,))
    multiplier, shift = np.uint64(_MULTIPLIER), np.uint64(_SHIFT)
    digests = sizes.astype(np.uint64) * multiplier
    rows = np.flatnonzero(sizes)
    done = 0
    while len(rows):
        left = sizes[rows] - done
        word = words[starts[rows] + done] & _WORD_MASKS[np.minimum(left, _WORD)]
        mixed = word * multiplier
        mixed = (mixed ^ mixed >> shift) * multiplier
        digests[rows] = (digests[rows] ^ np.where(left < _WORD, word, mixed)) * multiplier
        rows = rows[left > _WORD]
        done += _WORD
    digests = (digests ^ digests >> shift) * multiplier
    final: NDArray[np.uint64] = digests ^ digests >> shift
    return final


def _distinct(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # numpy's own `unique` hashes the numbers, which is slower than sorting them, and holds the GIL.
    hashes.sort()
    return hashes[np.concatenate(([True], hashes[1:] != hashes[:-1]))] if len(hashes) else hashes


def _bits_of(hashes: NDArray[np.uint64]) -> bytes:
    if not len(hashes):
        return b""
    size = -(-BITS_EACH * len(hashes) // 64) * 64
    flags = np.zeros(size, dtype=np.uint8)
    position, step = hashes & np.uint64(_MASK_32), hashes >> _HALF | np.uint64(1)
    for _ in range(PROBES):
        flags[position % np.uint64(size)] = 1
        position = position + step
    return np.packbits(flags, bitorder="little").tobytes()
