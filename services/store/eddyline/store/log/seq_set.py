"""Set of seqs of one topic: those deleted, or those that hold no record.

It is a roaring bitmap: runs cost about 14 bytes per 65 536 seqs, scattered ones 2 bytes a seq. The bitmap is made with the
first seq and dropped with the last: an empty one takes 330 bytes, 33 MB for 100 000 topics that delete nothing.

Ranks within a range are read from the containers of that range alone; absolute ranks walk through all containers below. So
searches widen and halve a range, and never rank absolutely.

Not promised: that foreign bytes are well formed inside. `deserialize` notices a wrong length or head; the content of a
bitmap is guarded by the checksum of the frame or catalog entry that it lies in. Seqs are 1 to 2^64 - 2. Threading: event
loop only.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np
from pyroaring import BitMap64

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eddyline.core.records.batch import Batch


class BadSeqSet(Exception):
    """The bytes are no serialized set."""


class SeqSet:
    """A set of seqs. See the module."""

    __slots__ = ("_bits",)

    def __init__(self) -> None:
        self._bits: BitMap64 | None = None

    # --- content ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return 0 if self._bits is None else len(self._bits)

    def __contains__(self, seq: int) -> bool:
        return self._bits is not None and seq in self._bits

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SeqSet):
            return NotImplemented
        return self._bits == other._bits

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"SeqSet({len(self)} seqs)"

    def seq_array(self) -> NDArray[np.uint64]:
        """Return all seqs, ascending: 8 bytes each, also where a run holds millions."""
        if self._bits is None:
            return np.zeros(0, dtype="<u8")
        return np.frombuffer(self._bits.to_array(), dtype="<u8")

    # --- change -----------------------------------------------------------------------------------------------

    def add(self, seq: int) -> None:
        """Add one seq."""
        self._made().add(seq)

    def add_range(self, first_seq: int, last_seq: int) -> None:
        """Add all seqs of a range, both inclusive; an empty range adds none."""
        if first_seq <= last_seq:
            self._made().add_range(first_seq, last_seq + 1)

    def add_array(self, seqs: NDArray[np.uint64]) -> None:
        """Add seqs, in any order."""
        if len(seqs):
            self._made().update(array("Q", seqs.tobytes()))

    def update(self, other: SeqSet) -> None:
        """Add all seqs of another set."""
        if other._bits is not None:
            self._bits = self._made() | other._bits

    def drop_through(self, seq: int) -> None:
        """Drop all seqs up to `seq`, inclusive: a floor has passed them."""
        if self._bits is not None:
            self._bits.remove_range(0, seq + 1)
            if not self._bits:
                self._bits = None

    def copy(self) -> SeqSet:
        """Return an independent copy."""
        copied = SeqSet()
        copied._bits = None if self._bits is None else self._bits.copy()
        return copied

    def union(self, other: SeqSet) -> SeqSet:
        """Return a new set with the seqs of both."""
        united = self.copy()
        united.update(other)
        return united

    # --- arithmetic -------------------------------------------------------------------------------------------

    def count(self, first_seq: int, last_seq: int) -> int:
        """Count the seqs of a range, both inclusive, that are in the set; 0 for an empty range."""
        if self._bits is None or first_seq > last_seq:
            return 0
        return self._bits.range_cardinality(first_seq, last_seq + 1)

    def select_after(self, seq: int, n: int) -> int:
        """Return the `n`-th seq, from 1, of those above `seq` that are NOT in the set."""
        assert n >= 1
        below, width = seq, n
        while (absent := width - self.count(below + 1, below + width)) < n:
            n -= absent
            below += width
            width *= 2
        # The n-th absent seq lies in (below, below + width].
        while width > 1:
            half = width // 2
            absent = half - self.count(below + 1, below + half)
            if absent >= n:
                width = half
            else:
                n -= absent
                below += half
                width -= half
        return below + 1

    def first_absent_after(self, seq: int) -> int:
        """Return the smallest seq above `seq` that is not in the set."""
        return seq + 1 if seq + 1 not in self else self.select_after(seq, 1)

    def last_absent_through(self, seq: int) -> int:
        """Return the largest seq up to `seq`, inclusive, that is not in the set; 0 = there is none."""
        if seq not in self:
            return seq
        end, width = seq + 1, 1
        while self._holds(end - width, end):
            end -= width
            width = min(2 * width, end)
            if width == 0:
                return 0
        # [end, seq] is in the set, something in [end - width, end) is not.
        while width > 1:
            half = width // 2
            if self._holds(end - half, end):
                end -= half
                width -= half
            else:
                width = half
        return end - 1

    def mask(self, batch: Batch) -> NDArray[np.bool_] | None:
        """Return which records of a placed batch, in seq order, are in the set; None = none of them."""
        if self.count(batch.first_seq, batch.last_seq) == 0:
            return None
        assert self._bits is not None
        mask = np.zeros(batch.count, dtype=np.bool_)
        if batch.seqs is None:
            inside = self._bits & BitMap64(range(batch.first_seq, batch.last_seq + 1))
            seqs = np.frombuffer(inside.to_array(), dtype="<u8")
            mask[seqs - np.uint64(batch.first_seq)] = True
            return mask
        # A batch may have many more missing seqs than rows, and these may be in the set: only rows are looked up.
        inside = self._bits & BitMap64(array("Q", bytes(batch.seqs)))
        if not inside:
            return None
        seqs = np.frombuffer(inside.to_array(), dtype="<u8")
        mask[np.searchsorted(batch.seq_array(), seqs)] = True
        return mask

    def mask_each(self, seqs: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which of these seqs, in any order, are in the set."""
        if self._bits is None or not len(seqs):
            return np.zeros(len(seqs), dtype=np.bool_)
        inside = self._bits & BitMap64(array("Q", seqs.tobytes()))
        return np.isin(seqs, np.frombuffer(inside.to_array(), dtype="<u8"))

    # --- bytes ------------------------------------------------------------------------------------------------

    def serialize(self) -> bytes:
        """Serialize the set in roaring's portable 64-bit format; empty bytes = an empty set."""
        if self._bits is None:
            return b""
        self._bits.run_optimize()
        return self._bits.serialize()

    @staticmethod
    def deserialize(data: bytes) -> SeqSet:
        """Return the set of serialized bytes.

        Raises:
            BadSeqSet: these are no set's bytes.
        """
        seqs = SeqSet()
        if data:
            try:
                bits = BitMap64.deserialize(data)
            except ValueError as error:
                raise BadSeqSet(f"{len(data)} bytes are not a roaring bitmap") from error
            if not bits or 0 in bits:
                raise BadSeqSet("a roaring bitmap is empty, or has seq 0")
            seqs._bits = bits
        return seqs

    def _made(self) -> BitMap64:
        if self._bits is None:
            self._bits = BitMap64()
        return self._bits

    def _holds(self, first_seq: int, end_seq: int) -> bool:
        return self._bits is not None and self._bits.contains_range(first_seq, end_seq)
