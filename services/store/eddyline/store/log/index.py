"""The index of one topic's log: one entry a frame, none a record.

Entries lie in arrays of machine numbers (28 bytes a frame), so that a million frames cost 28 MB and no Python object.
I1: `last_seq` grows from entry to entry; frames of no record are not indexed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

from eddyline.store.storage.wal import Location


class IndexEntry(NamedTuple):
    """Where a frame is, and which seqs it holds (both inclusive)."""

    first_seq: int
    last_seq: int
    location: Location


class FrameIndex:
    """Frames of one topic in seq order."""

    __slots__ = ("_first", "_last", "_length", "_number", "_offset")

    def __init__(self) -> None:
        self._first = array("Q")
        self._last = array("Q")
        self._number = array("I")
        self._offset = array("I")
        self._length = array("I")

    def __len__(self) -> int:
        return len(self._last)

    def add(self, first_seq: int, last_seq: int, location: Location) -> None:
        """Append the next frame."""
        assert last_seq >= first_seq
        assert not self._last or first_seq > self._last[-1]
        self._first.append(first_seq)
        self._last.append(last_seq)
        self._number.append(location.file_number)
        self._offset.append(location.offset)
        self._length.append(location.length)

    def position_after(self, seq: int) -> int:
        """Number of the first entry that holds a seq above `seq`; `len(self)` where none does."""
        return bisect_right(self._last, seq)

    def entry(self, position: int) -> IndexEntry:
        """The entry at `position`."""
        location = Location(self._number[position], self._offset[position], self._length[position])
        return IndexEntry(self._first[position], self._last[position], location)

    @property
    def first_seq(self) -> int:
        """First seq of the log; 0 where it is empty."""
        return self._first[0] if self._first else 0
