"""Files of a topic's log: verified reads of WAL frames and of segments' record batches, and extents of both in seq order.

A `LogExtent` is made on the event loop: the segments (held, so that no file is removed while it is read) and index entries
that hold a range of seqs. Any thread may read its batches. They are as stored: rows below floors and deleted ones included.
I1: an extent's batches are in seq order. I2: the creator of an extent closes it.
I3: footers are cached up to a byte bound, least recently used out first; a caller that has a footer may keep using it.
Threading: one lock, a leaf, guards open segment files and footers; extents are made and closed on the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol

from eddyline.core.runtime.fs import is_shortage
from eddyline.store.storage.layout import temporary_file
from eddyline.store.storage.segment.reader import read_batch, read_footer, read_message, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from eddyline.core.records.batch import Batch
    from eddyline.core.runtime.fs import File, Fs
    from eddyline.store.log.index import IndexEntry
    from eddyline.store.log.segments import Segment
    from eddyline.store.log.topic import Topic
    from eddyline.store.storage.segment.footer import BatchEntry, Footer
    from eddyline.store.storage.wal.frame import WalFrame
    from eddyline.store.storage.wal.wal import Location

OPEN_FILES_MAX: Final = 256
"""Segment files kept open between reads: an open costs 10 us, a descriptor is one of some 20 000."""
FOOTERS_BYTES_MAX: Final = 64 << 20
"""Default bound of cached footers: reading one takes 0.15 ms, or 2 ms with 262 000 keys (330 KB)."""
FOOTER_OVERHEAD_BYTES: Final = 2_000
BATCH_ENTRY_BYTES: Final = 500
"""Memory of a footer without its filters, and of each batch entry in it; measured with tracemalloc, rounded up."""


class FrameReader(Protocol):
    """One WAL shard's frames by location."""

    def read(self, location: Location) -> WalFrame:
        """Read the frame at a location.

        Raises:
            DataCorrupt.
        """


class LogFiles:
    """The log files of one store."""

    def __init__(self, fs: Fs, wals: Sequence[FrameReader], *, footer_bytes_max: int = FOOTERS_BYTES_MAX) -> None:
        self.fs = fs
        self._wals = wals
        self._lock = Lock()
        self._open: OrderedDict[Path, File] = OrderedDict()
        self._footer_bytes_max = footer_bytes_max
        self._with_footer: OrderedDict[Path, Segment] = OrderedDict()
        self.footer_bytes = 0
        """Memory of the cached footers."""

    def frame(self, topic_id: int, location: Location) -> Batch:
        """Read the batch of a frame of this topic.

        Raises:
            DataCorrupt: no frame is at the location, or its checksum is wrong.
        """
        batch = self._wals[topic_id % len(self._wals)].read(location).batch
        assert batch is not None, "only appends are indexed"
        return batch

    def footer(self, segment: Segment) -> Footer:
        """Return a segment's footer, from the cache or from its file.

        Raises:
            DataCorrupt.
        """
        footer = self.cached_footer(segment)
        if footer is None:
            footer = read_footer(self.fs, segment.path)
            self.cache_footer(segment, footer)
        return footer

    def cached_footer(self, segment: Segment) -> Footer | None:
        """Return a segment's footer if it is cached."""
        with self._lock:
            footer = segment.footer
            if footer is not None:
                self._with_footer.move_to_end(segment.path)
            return footer

    def cache_footer(self, segment: Segment, footer: Footer) -> None:
        """Cache a footer with its segment; above the bound the least recently used ones are dropped."""
        with self._lock:
            self._drop_footer(segment.path)
            segment.footer = footer
            self._with_footer[segment.path] = segment
            self.footer_bytes += footer_bytes(footer)
            while self.footer_bytes > self._footer_bytes_max:
                self._drop_footer(next(iter(self._with_footer)))

    def _drop_footer(self, path: Path) -> None:
        segment = self._with_footer.pop(path, None)
        if segment is not None and segment.footer is not None:
            self.footer_bytes -= footer_bytes(segment.footer)
            segment.footer = None

    def batch(self, segment: Segment, entry: BatchEntry) -> Batch:
        """Read one record batch of a segment; the caller holds the segment.

        Raises:
            DataCorrupt.
        """
        file = self._borrow(segment.path)
        try:
            return read_batch(file, segment.path, entry)
        finally:
            self._return_file(segment.path, file)

    def message(self, segment: Segment, entry: BatchEntry) -> bytes:
        """Read one record batch of a segment as written, an Arrow IPC message; the caller holds the segment.

        Raises:
            DataCorrupt.
        """
        file = self._borrow(segment.path)
        try:
            return read_message(file, segment.path, entry)
        finally:
            self._return_file(segment.path, file)

    def batches(self, extent: LogExtent, after_seq: int = 0) -> Iterator[Batch]:
        """Iterate the stored batches of an extent that hold a seq above `after_seq`, whole. Blocking; one in memory at a
        time.

        Raises:
            DataCorrupt.
        """
        for segment in extent.segments:
            if segment.summary.last_seq > after_seq:
                footer = self.footer(segment)
                for entry in footer.batches[footer.batch_after(after_seq) :]:
                    yield self.batch(segment, entry)
        for index_entry in extent.entries:
            if index_entry.last_seq > after_seq:
                yield self.frame(extent.topic_id, index_entry.location)

    def close(self) -> None:
        """Close open files and drop cached footers. No read may follow."""
        with self._lock:
            files = list(self._open.values())
            self._open.clear()
            for path in list(self._with_footer):
                self._drop_footer(path)
        for file in files:
            file.close()

    def _borrow(self, path: Path) -> File:
        """Return an open file that no other caller uses until it is returned."""
        with self._lock:
            file = self._open.pop(path, None)
        return file if file is not None else self._open_file(path)

    def _open_file(self, path: Path) -> File:
        """Open a segment's file. A segment is in the log a moment before its file is renamed: try the temporary name too."""
        try:
            for name in (path, temporary_file(path)):
                with suppress(FileNotFoundError):
                    return self.fs.open(name)
            return self.fs.open(path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError) and not is_shortage(error):
                raise
            raise unreadable(path, 0, error) from error

    def _return_file(self, path: Path, file: File) -> None:
        closing: list[File] = []
        with self._lock:
            previous = self._open.pop(path, None)
            if previous is not None:
                closing.append(previous)
            self._open[path] = file
            if len(self._open) > OPEN_FILES_MAX:
                closing.append(self._open.popitem(last=False)[1])
        for closed in closing:
            closed.close()

    def forget(self, path: Path) -> None:
        """Close a file that is about to be unlinked, so that its blocks are freed, and drop its footer."""
        with self._lock:
            file = self._open.pop(path, None)
            self._drop_footer(path)
        if file is not None:
            file.close()


class LogExtent:
    """Segments and index entries of one topic, held until `close`."""

    def __init__(self, topic_id: int, segments: Sequence[Segment], entries: Sequence[IndexEntry]) -> None:
        self.topic_id = topic_id
        self.segments = tuple(segments)
        self.entries = tuple(entries)
        for segment in self.segments:
            segment.hold()

    def close(self) -> None:
        """Release the segments."""
        for segment in self.segments:
            segment.let_go()
        self.segments = ()


def footer_bytes(footer: Footer) -> int:
    """Estimate a footer's memory."""
    filters = len(footer.keys.bits) + len(footer.tags.bits)
    return FOOTER_OVERHEAD_BYTES + filters + BATCH_ENTRY_BYTES * len(footer.batches)


def extent_of(topic: Topic, after_seq: int = 0, through_seq: int | None = None) -> LogExtent:
    """Return the extent of a topic's stored records above `after_seq` and up to `through_seq` (None = the head), by whole
    pieces."""
    last_seq = topic.head_seq if through_seq is None else through_seq
    segments = topic.segments.within(after_seq + 1, last_seq)
    entries = [entry for entry in topic.index.entries_through(last_seq) if entry.last_seq > after_seq]
    return LogExtent(topic.id, segments, entries)
