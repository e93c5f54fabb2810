"""Rings of recent frames, one a topic: what every level subscriber of the topic is served from.

A subscriber has no queue of its own, only a seq; whoever falls behind the floor of a ring reads the log by its cursor.
What is pushed is closed at first; the topic's turn opens it, a few frames at a time or joined into one.

I1: a ring's frames are neighbours: each begins where the one before it ends, the first at `floor_seq`, the last ends at
`end_seq`. I2: what all rings hold, batches and their encodings, is at most the budget's bytes, and one ring's at most its
own bound; the oldest goes first, the newest too where it alone is larger. I3: a frame is encoded at most once a view.
I4: `open_seq` is the end of a frame, or below the floor; frames are joined only while they are closed, so nobody has
taken a part of what is joined.
Threading: event loop only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap
from eddyline.core.records.size import item_bytes
from eddyline.delivery.feed.encode import Place, item_frame
from eddyline.delivery.feed.trace import opened, traceparent

if TYPE_CHECKING:
    from eddyline.delivery.feed.encode import Frame, View
    from eddyline.delivery.feed.trace import CommitTrace

FRAME_OVERHEAD_BYTES: Final = 512
"""What a frame costs beside its buffers: about ten Python objects, measured with `sys.getsizeof`."""

_NEXT_AFTER_SEQ: Final = attrgetter("next_after_seq")


class RingBudget:
    """What all rings of a process may hold together."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._frames: OrderedDict[RingFrame, Ring] = OrderedDict()
        self.nbytes = 0
        self.encoded_count = 0

    def hold(self, frame: RingFrame, ring: Ring) -> None:
        """Count a new frame."""
        self._frames[frame] = ring
        self.grow(frame.nbytes)

    def grow(self, nbytes: int) -> None:
        """Count so many bytes more; the oldest frames anywhere make room."""
        self.nbytes += nbytes
        while self.nbytes > self._bytes_max and self._frames:
            # the oldest frame of all is the oldest of its ring
            next(iter(self._frames.values())).drop_oldest()

    def release(self, frame: RingFrame) -> None:
        """Forget a frame that left its ring."""
        del self._frames[frame]
        self.nbytes -= frame.nbytes


class RingFrame:
    """Records or a gap, and their encodings. Covers seqs above `after_seq` up to `next_after_seq`.

    `batch_end` = no append lies on both sides of `next_after_seq`, as far as is known."""

    __slots__ = ("after_seq", "batch_end", "encoded", "item", "nbytes", "next_after_seq", "traces")

    def __init__(
        self,
        item: Batch | Gap,
        after_seq: int,
        next_after_seq: int,
        traces: tuple[CommitTrace, ...] = (),
        *,
        batch_end: bool = False,
    ) -> None:
        self.item = item
        self.batch_end = batch_end
        self.after_seq = after_seq
        self.next_after_seq = next_after_seq
        self.nbytes = item_bytes(item) + FRAME_OVERHEAD_BYTES
        self.encoded: dict[View, Frame] = {}
        self.traces = traces
        """Of commits in it that are traced."""


class Ring:
    """One topic's recent frames, all of one epoch."""

    def __init__(self, topic: str, budget: RingBudget, bytes_max: int) -> None:
        self._topic = topic
        self._budget = budget
        self._bytes_max = bytes_max
        self._frames: list[RingFrame] = []
        self._start = 0
        self.nbytes = 0
        self.epoch = 0
        self.floor_seq = 0
        self.end_seq = 0
        self.open_seq = 0
        """Up to here it is open to subscribers."""
        self.unopened_bytes = 0
        """Bytes by the semantics of the frames above `open_seq`."""

    @property
    def has_unopened(self) -> bool:
        """True = there is more than what is open, in the ring or fallen out of it."""
        return self.open_seq < self.end_seq

    def reset(self, epoch: int, seq: int) -> None:
        """Begin anew at `seq` of an epoch."""
        self.forget()
        self.epoch = epoch
        self.floor_seq = self.end_seq = self.open_seq = seq

    def forget(self) -> None:
        """Give up all frames: who has not had them reads the log."""
        while self._start < len(self._frames):
            self.drop_oldest()

    def push(
        self,
        item: Batch | Gap,
        next_after_seq: int,
        traces: tuple[CommitTrace, ...] = (),
        *,
        batch_end: bool = False,
    ) -> None:
        """Take what follows `end_seq`, up to `next_after_seq`."""
        assert next_after_seq > self.end_seq, "a ring never goes back"
        frame = RingFrame(item, self.end_seq, next_after_seq, traces, batch_end=batch_end)
        self._frames.append(frame)
        self.end_seq = next_after_seq
        self.nbytes += frame.nbytes
        self.unopened_bytes += frame.nbytes - FRAME_OVERHEAD_BYTES
        self._budget.hold(frame, self)
        self._trim()

    def open_next(self, after_seq: int = 0, *, joined_bytes_max: int = 0) -> int:
        """Open the next frame for who has all up to `after_seq`, and what is before it. The frame's records.

        With `joined_bytes_max` it is made of so many that they have at most these bytes, at least one."""
        reached = max(self.open_seq, self.floor_seq, after_seq)
        if reached >= self.end_seq:
            self.open_seq, self.unopened_bytes = self.end_seq, 0
            return 0
        start = len(self._frames) - 1
        if self._frames[start].after_seq > reached:
            start = bisect_right(self._frames, reached, lo=self._start, key=_NEXT_AFTER_SEQ)
        self._pass_over(start)
        frame = self._frames[start]
        if joined_bytes_max and not isinstance(frame.item, Gap):
            self._join(start, joined_bytes_max)
        self.open_seq = frame.next_after_seq
        self.unopened_bytes -= frame.nbytes - FRAME_OVERHEAD_BYTES
        if frame.traces:
            opened(frame.traces)
        return 0 if isinstance(frame.item, Gap) else frame.item.count

    def _pass_over(self, stop: int) -> None:
        """Closed frames before the one at `stop`, which nobody waited for, are open."""
        while stop > self._start and self._frames[stop - 1].after_seq >= self.open_seq:
            stop -= 1
            self.unopened_bytes -= self._frames[stop].nbytes - FRAME_OVERHEAD_BYTES
            opened(self._frames[stop].traces)

    def after(self, seq: int) -> RingFrame | None:
        """The frame that has what comes after `seq`, open or not; None = nothing yet. `seq` is at the floor or above it."""
        assert seq >= self.floor_seq, "below the floor the log is read"
        if seq >= self.end_seq:
            return None
        last = self._frames[-1]
        if seq >= last.after_seq:
            return last
        return self._frames[bisect_right(self._frames, seq, lo=self._start, key=_NEXT_AFTER_SEQ)]

    def encoded(self, frame: RingFrame, view: View) -> Frame:
        """The frame as `view` wants it: encoded the first time, kept for the others."""
        found = frame.encoded.get(view)
        if found is None:
            place = Place(self._topic, self.epoch, frame.next_after_seq, frame.batch_end)
            found = item_frame(place, frame.item, view, traceparent(frame.traces))
            self._budget.encoded_count += 1
            frame.encoded[view] = found
            if frame.after_seq >= self.floor_seq:
                frame.nbytes += len(found.data)
                self.nbytes += len(found.data)
                self._budget.grow(len(found.data))
                self._trim()
        return found

    def drop_oldest(self) -> None:
        """Give up the oldest frame: who has not had it reads it from the log."""
        frame = self._frames[self._start]
        self._start += 1
        self.floor_seq = frame.next_after_seq
        self.nbytes -= frame.nbytes
        if frame.after_seq >= self.open_seq:
            self.unopened_bytes -= frame.nbytes - FRAME_OVERHEAD_BYTES
        self._budget.release(frame)
        if self._start * 2 > len(self._frames):
            del self._frames[: self._start]
            self._start = 0
        else:
            self._frames[self._start - 1] = _DROPPED

    def _join(self, start: int, bytes_max: int) -> None:
        """Make one of a closed frame and its neighbours, in its place, so that none is older than it was."""
        first = self._frames[start]
        left = bytes_max - (first.nbytes - FRAME_OVERHEAD_BYTES)
        parts: list[Batch] = []
        stop = start
        while stop < len(self._frames) and not isinstance(item := self._frames[stop].item, Gap):
            if stop > start:
                left -= self._frames[stop].nbytes - FRAME_OVERHEAD_BYTES
                if left < 0:
                    break
            parts.append(item)
            stop += 1
        rest = self._frames[start + 1 : stop]
        if not rest:
            return
        for frame in rest:
            self._budget.release(frame)
        gained = sum([frame.nbytes - FRAME_OVERHEAD_BYTES for frame in rest])
        first.item = Batch.concat(parts)
        first.next_after_seq, first.batch_end = rest[-1].next_after_seq, rest[-1].batch_end
        first.traces = tuple(chain(first.traces, *[frame.traces for frame in rest]))
        first.nbytes += gained
        self.nbytes -= FRAME_OVERHEAD_BYTES * len(rest)
        del self._frames[start + 1 : stop]
        self._budget.grow(gained)

    def _trim(self) -> None:
        while self.nbytes > self._bytes_max:
            self.drop_oldest()


_DROPPED: Final = RingFrame(Gap(0, 0, 0), 0, 0)
"""Holds the place of a frame that was given up, so that its bytes are free at once."""
