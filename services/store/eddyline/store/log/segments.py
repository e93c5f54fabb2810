"""Segments of one topic: which file holds which seqs, as a few numbers per file.

A segment's footer (its table, filters) is read when it is first needed, and cached while there is room
(`eddyline.store.log_io.files`). A reader holds the segment while it reads the file; a replaced segment is unlinked when its
last reader releases it.
I1: segments are ordered and do not overlap. I2: a replaced segment is in no set; its file is removed once `holds` is 0.
Threading: event loop only; reader threads read the files.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from eddyline.store.storage.layout import SegmentId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from eddyline.store.storage.segment.footer import Footer, SegmentSummary


class Segment:
    """One segment file."""

    __slots__ = ("_on_free", "footer", "holds", "path", "replaced", "summary")

    def __init__(self, summary: SegmentSummary, path: Path) -> None:
        self.summary = summary
        self.path = path
        self.footer: Footer | None = None
        self.holds = 0
        self.replaced = False
        self._on_free: Callable[[Segment], None] | None = None

    @property
    def id(self) -> SegmentId:
        """The parts of its name."""
        return SegmentId(*self.summary[:3])

    def hold(self) -> None:
        """Count one more reader of the file."""
        self.holds += 1

    def let_go(self) -> None:
        """Count one reader less."""
        self.holds -= 1
        self._free()

    def replace(self, on_free: Callable[[Segment], None]) -> None:
        """Mark the segment as replaced, in no set any more: call `on_free` once it has no reader."""
        self.replaced = True
        self._on_free = on_free
        self._free()

    def _free(self) -> None:
        if self.replaced and not self.holds and self._on_free is not None:
            on_free, self._on_free = self._on_free, None
            on_free(self)


class SegmentSet:
    """Segments of one topic in seq order."""

    __slots__ = ("_last", "_segments", "file_bytes")

    def __init__(self) -> None:
        self._segments: tuple[Segment, ...] = ()
        self._last: tuple[int, ...] = ()
        self.file_bytes = 0

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def first_seq(self) -> int:
        """First seq; 0 = there is no segment."""
        return self._segments[0].summary.first_seq if self._segments else 0

    @property
    def last_seq(self) -> int:
        """Last seq; 0 = there is no segment."""
        return self._last[-1] if self._last else 0

    @property
    def first_ts_ms(self) -> int:
        """Commit time of the first row; 0 = there is no segment."""
        return self._segments[0].summary.first_ts_ms if self._segments else 0

    def after(self, seq: int) -> Segment | None:
        """Return the first segment that holds a seq above `seq`."""
        position = bisect_left(self._last, seq + 1)
        return self._segments[position] if position < len(self._segments) else None

    def through(self, seq: int) -> Segment | None:
        """Return the last segment that holds a seq at or below `seq`."""
        position = bisect_right(self._segments, seq, key=_first_seq) - 1
        return self._segments[position] if position >= 0 else None

    def find(self, wanted: SegmentId) -> Segment | None:
        """Return the segment of this name, or None."""
        segment = self.after(wanted.first_seq - 1)
        return segment if segment is not None and segment.id == wanted else None

    def within(self, first_seq: int, last_seq: int) -> list[Segment]:
        """Return the segments that hold a seq of the range (both inclusive)."""
        segments: list[Segment] = []
        for segment in self._segments[bisect_left(self._last, first_seq) :]:
            if segment.summary.first_seq > last_seq:
                break
            segments.append(segment)
        return segments

    def change(self, *, add: Sequence[Segment], remove: Sequence[Segment]) -> None:
        """Add and remove segments."""
        kept = [segment for segment in self._segments if segment not in remove]
        self._segments = tuple(sorted([*kept, *add], key=_first_seq))
        self._last = tuple(segment.summary.last_seq for segment in self._segments)
        self.file_bytes = sum(segment.summary.file_bytes for segment in self._segments)


def _first_seq(segment: Segment) -> int:
    return segment.summary.first_seq


NO_SEGMENTS: Final = SegmentSet()
"""Shared by all topics without segments; never changed."""
