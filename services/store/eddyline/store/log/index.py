"""Index of one topic's unsegmented log: one entry per WAL frame, none per record.

Entries lie in arrays of machine numbers (40 bytes a frame), so that a million frames cost 40 MB and no Python object; an
index that never had an entry shares one set of empty arrays, so that an idle topic costs next to nothing.
I1: `last_seq` grows from entry to entry, and no two entries overlap; frames of no record are not indexed. I2: an entry put
again (the frame was carried to a newer file) keeps its seqs and takes the newer location.

`LogTotals` sums up a shard's logs as they change, so that a status costs the same with any number of topics. A topic's
index, segments and fold are counted from the moment the table has the topic until it is removed.
I3: the totals are the sums over the table's topics, between any two steps of the event loop.
Threading: recovery before it serves, then the event loop.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from eddyline.store.storage.wal.wal import Location


class IndexEntry(NamedTuple):
    """Location of a frame, its seqs (both inclusive), its commit time, and its records' bytes as `cap_bytes` counts them."""

    first_seq: int
    last_seq: int
    location: Location
    ts_ms: int = 0
    record_bytes: int = 0


class _Columns:
    """One array per field."""

    __slots__ = ("bytes", "first", "last", "length", "number", "offset", "ts")

    def __init__(self) -> None:
        self.first = array("Q")
        self.last = array("Q")
        self.number = array("I")
        self.offset = array("I")
        self.length = array("I")
        self.ts = array("q")
        self.bytes = array("I")

    def all(self) -> tuple[array[int], ...]:
        """Return every array, in the order of a row of `_put_among`."""
        return self.first, self.last, self.number, self.offset, self.length, self.ts, self.bytes


_NOTHING: Final = _Columns()


class FrameIndex:
    """Frames of one topic in seq order."""

    __slots__ = ("_at", "_totals", "frame_bytes", "record_bytes", "record_count")

    def __init__(self) -> None:
        self._at = _NOTHING
        self._totals: LogTotals | None = None
        self.frame_bytes = 0
        """Bytes of all frames, as they lie in the WAL."""
        self.record_bytes = 0
        self.record_count = 0
        """Number of seqs in all frames."""

    def __len__(self) -> int:
        return len(self._at.last)

    def count_in(self, totals: LogTotals | None) -> None:
        """Count in these totals from now on, and no longer in the previous ones; None = in none."""
        for counted, frame_bytes in ((self._totals, -self.frame_bytes), (totals, self.frame_bytes)):
            if counted is not None:
                counted.unsegmented_bytes += frame_bytes
        self._totals = totals

    @property
    def first_seq(self) -> int:
        """First seq; 0 = the index is empty."""
        return self._at.first[0] if self._at.first else 0

    @property
    def first_ts_ms(self) -> int:
        """Commit time of the first frame; 0 = the index is empty."""
        return self._at.ts[0] if self._at.ts else 0

    @property
    def last_seq(self) -> int:
        """Last seq; 0 = the index is empty."""
        return self._at.last[-1] if self._at.last else 0

    @property
    def first_file(self) -> int:
        """Number of the oldest WAL file with an entry; 0 = the index is empty."""
        return min(self._at.number, default=0)

    def put(self, first_seq: int, last_seq: int, location: Location, *, ts_ms: int = 0, record_bytes: int = 0) -> None:
        """Add a frame, usually the next one; a frame that is in the index gets the new location."""
        assert last_seq >= first_seq
        if self._at is _NOTHING:
            self._at = _Columns()
        at = self._at
        if not at.last or first_seq > at.last[-1]:
            at.first.append(first_seq)
            at.last.append(last_seq)
            at.number.append(location.file_number)
            at.offset.append(location.offset)
            at.length.append(location.length)
            at.ts.append(ts_ms)
            at.bytes.append(record_bytes)
        else:
            self._put_among((first_seq, last_seq, *location, ts_ms, record_bytes))
        self._grow(location.length)
        self.record_bytes += record_bytes
        self.record_count += last_seq - first_seq + 1

    def _put_among(self, row: tuple[int, ...]) -> None:
        """Insert a row before others, or replace the row of its seqs."""
        first_seq, last_seq = row[:2]
        last = self._at.last
        position = bisect_left(self._at.first, first_seq)
        exists = position < len(last) and self._at.first[position] == first_seq
        if exists:
            assert last[position] == last_seq, "a carried frame has the seqs it had"
            self._grow(-self._at.length[position])
            self.record_bytes -= self._at.bytes[position]
            self.record_count -= last_seq - first_seq + 1
        for column, value in zip(self._at.all(), row, strict=True):
            if exists:
                column[position] = value
            else:
                column.insert(position, value)

    def _grow(self, frame_bytes: int) -> None:
        self.frame_bytes += frame_bytes
        if self._totals is not None:
            self._totals.unsegmented_bytes += frame_bytes

    def move(self, first_seq: int, location: Location) -> bool:
        """Set the new location of a carried frame; False = the frame is no longer needed."""
        position = bisect_left(self._at.first, first_seq)
        if position == len(self) or self._at.first[position] != first_seq:
            return False
        self._grow(location.length - self._at.length[position])
        self._at.number[position], self._at.offset[position], self._at.length[position] = location
        return True

    def drop_through(self, seq: int) -> None:
        """Drop the frames that lie wholly at or below `seq`."""
        count = bisect_right(self._at.last, seq)
        if not count:
            return
        if count == len(self):
            self._grow(-self.frame_bytes)
            self._at, self.record_bytes, self.record_count = _NOTHING, 0, 0
            return
        self._grow(-sum(self._at.length[:count]))
        self.record_bytes -= sum(self._at.bytes[:count])
        self.record_count -= sum(self._at.last[:count]) - sum(self._at.first[:count]) + count
        for column in self._at.all():
            del column[:count]

    def position_after(self, seq: int) -> int:
        """Return the position of the first entry that holds a seq above `seq`; `len(self)` = none does."""
        return bisect_right(self._at.last, seq)

    def position_through(self, seq: int) -> int:
        """Return the position of the last entry that holds a seq at or below `seq`; -1 = none does."""
        return bisect_right(self._at.first, seq) - 1

    def seq_before_time(self, ts_ms: int) -> int:
        """Return the seq before the first frame committed at or after `ts_ms`; the last seq = there is none."""
        position = bisect_left(self._at.ts, ts_ms)
        return self._at.first[position] - 1 if position < len(self) else self.last_seq

    def bytes_after(self, seq: int) -> int:
        """Return the record bytes of the frames that hold a seq above `seq`, by whole frames."""
        return sum(self._at.bytes[self.position_after(seq) :])

    def entry(self, position: int) -> IndexEntry:
        """Return the entry at `position`."""
        at = self._at
        location = Location(at.number[position], at.offset[position], at.length[position])
        return IndexEntry(at.first[position], at.last[position], location, at.ts[position], at.bytes[position])

    def entries_through(self, seq: int, *, records_max: int = 1 << 62, bytes_max: int = 1 << 62) -> list[IndexEntry]:
        """Return the oldest entries that begin at or below `seq`: as many as fit the bounds, at least one."""
        entries: list[IndexEntry] = []
        count = size = 0
        for position in range(bisect_right(self._at.first, seq)):
            entry = self.entry(position)
            count, size = count + entry.last_seq - entry.first_seq + 1, size + entry.location.length
            if entries and (count > records_max or size > bytes_max):
                break
            entries.append(entry)
        return entries


class LogTotals:
    """Totals of a shard; see the module. `unsegmented_bytes` = WAL frames with records that are in no segment; of
    `fold_count` folds `lost_fold_count` are refused to readers."""

    __slots__ = ("fold_count", "lost_fold_count", "segment_bytes", "segment_count", "unsegmented_bytes")

    def __init__(self) -> None:
        self.fold_count = 0
        self.lost_fold_count = 0
        self.segment_count = 0
        self.segment_bytes = 0
        self.unsegmented_bytes = 0
