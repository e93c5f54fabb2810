"""Rings of recent frames, one a topic, from which every caught-up subscriber of the topic is served.

A subscriber has no queue of its own, only a seq; one that falls behind the floor of a ring reads the log by its cursor.
A pushed frame is closed at first; the topic's turn opens it, joined with the small ones behind it.

I1: a ring's frames are adjacent: each begins at the end of the one before it, the first at `floor_seq`, the last ends
    at `end_seq`. I2: the batches and encodings of all rings have at most the budget's bytes, and those of one ring at
    most its own bound; the oldest frame is evicted first, the newest too if it alone is larger. I3: a frame is encoded
    at most once a view. I4: `open_seq` is the end of a frame, or below the floor; frames are joined only while they are
    closed, so no subscriber has taken a part of a joined frame.
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
from eddyline.delivery.feed.encode import FramePosition, item_frame
from eddyline.delivery.feed.trace import end_receive_spans, traceparent

if TYPE_CHECKING:
    from eddyline.delivery.feed.encode import EncodedFrame, TopicView
    from eddyline.delivery.feed.trace import CommitTrace

FRAME_OVERHEAD_BYTES: Final = 512
"""Cost of a frame besides its buffers: about ten Python objects, measured with `sys.getsizeof`."""

_NEXT_AFTER_SEQ: Final = attrgetter("next_after_seq")


class RingBudget:
    """Budget of all rings of a process together."""

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
        """Count `nbytes` more; the oldest frames of any ring are evicted to make room."""
        self.nbytes += nbytes
        while self.nbytes > self._bytes_max and self._frames:
            # the oldest frame of all is the oldest of its ring
            next(iter(self._frames.values())).drop_oldest()

    def release(self, frame: RingFrame) -> None:
        """Remove the count of a frame that left its ring."""
        del self._frames[frame]
        self.nbytes -= frame.nbytes


class RingFrame:
    """Records or a gap, and their encodings. Covers seqs above `after_seq` up to `next_after_seq`.

    `batch_end` = no append lies on both sides of `next_after_seq`, as far as is known.
    """

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
        self.encoded: dict[TopicView, EncodedFrame] = {}
        self.traces = traces
        """Of traced commits in it."""


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
        """Frames up to this seq are open to subscribers."""
        self.unopened_bytes = 0
        """Bytes by the contract of the frames above `open_seq`."""

    @property
    def has_unopened(self) -> bool:
        """True = there are records above the open ones, in the ring or evicted from it."""
        return self.open_seq < self.end_seq

    def reset(self, epoch: int, seq: int) -> None:
        """Start over at `seq` of an epoch."""
        self.forget()
        self.epoch = epoch
        self.floor_seq = self.end_seq = self.open_seq = seq

    def forget(self) -> None:
        """Evict all frames: subscribers without them read the log."""
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
        """Append the frame that follows `end_seq`, up to `next_after_seq`."""
        assert next_after_seq > self.end_seq, "a ring never goes back"
        frame = RingFrame(item, self.end_seq, next_after_seq, traces, batch_end=batch_end)
        self._frames.append(frame)
        self.end_seq = next_after_seq
        self.nbytes += frame.nbytes
        self.unopened_bytes += frame.nbytes - FRAME_OVERHEAD_BYTES
        self._budget.hold(frame, self)
        self._trim()

    def open_next(self, after_seq: int = 0, *, joined_bytes_max: int = 0) -> int:
        """Open the next frame for a subscription at `after_seq`, and all frames before it; return the frame's records.

        With `joined_bytes_max` consecutive frames are joined into one of at most these bytes, at least one frame.
        """
        reached = max(self.open_seq, self.floor_seq, after_seq)
        if reached >= self.end_seq:
            self.open_seq, self.unopened_bytes = self.end_seq, 0
            return 0
        start = len(self._frames) - 1
        if self._frames[start].after_seq > reached:
            start = bisect_right(self._frames, reached, lo=self._start, key=_NEXT_AFTER_SEQ)
        self._open_before(start)
        frame = self._frames[start]
        if joined_bytes_max and not isinstance(frame.item, Gap):
            self._join(start, joined_bytes_max)
        self.open_seq = frame.next_after_seq
        self.unopened_bytes -= frame.nbytes - FRAME_OVERHEAD_BYTES
        if frame.traces:
            end_receive_spans(frame.traces)
        return 0 if isinstance(frame.item, Gap) else frame.item.count

    def _open_before(self, stop: int) -> None:
        """Open the closed frames before index `stop`, which no subscription waited for."""
        while stop > self._start and self._frames[stop - 1].after_seq >= self.open_seq:
            stop -= 1
            self.unopened_bytes -= self._frames[stop].nbytes - FRAME_OVERHEAD_BYTES
            end_receive_spans(self._frames[stop].traces)

    def frame_after(self, seq: int) -> RingFrame | None:
        """Return the frame with the records after `seq`, open or not; None = none yet. `seq` is at the floor or above it."""
        assert seq >= self.floor_seq, "below the floor the log is read"
        if seq >= self.end_seq:
            return None
        last = self._frames[-1]
        if seq >= last.after_seq:
            return last
        return self._frames[bisect_right(self._frames, seq, lo=self._start, key=_NEXT_AFTER_SEQ)]

    def last_opened(self) -> RingFrame | None:
        """Return the frame that was opened last; None = it is evicted."""
        return self.frame_after(self.open_seq - 1) if self.open_seq > self.floor_seq else None

    def encoded(self, frame: RingFrame, view: TopicView) -> EncodedFrame:
        """Return the frame encoded for `view`: encoded at the first call, cached for the others."""
        cached = frame.encoded.get(view)
        if cached is None:
            position = FramePosition(self._topic, self.epoch, frame.next_after_seq, frame.batch_end)
            cached = item_frame(position, frame.item, view, traceparent(frame.traces))
            self._budget.encoded_count += 1
            frame.encoded[view] = cached
            if frame.after_seq >= self.floor_seq:
                frame.nbytes += len(cached.data)
                self.nbytes += len(cached.data)
                self._budget.grow(len(cached.data))
                self._trim()
        return cached

    def drop_oldest(self) -> None:
        """Evict the oldest frame: subscribers without it read the log."""
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
        """Join a closed frame with its successors, at its index, so that the result is not older than it was."""
        first = self._frames[start]
        remaining = bytes_max - (first.nbytes - FRAME_OVERHEAD_BYTES)
        parts: list[Batch] = []
        stop = start
        while stop < len(self._frames) and not isinstance(item := self._frames[stop].item, Gap):
            if stop > start:
                remaining -= self._frames[stop].nbytes - FRAME_OVERHEAD_BYTES
                if remaining < 0:
                    break
            parts.append(item)
            stop += 1
        followers = self._frames[start + 1 : stop]
        if not followers:
            return
        for frame in followers:
            self._budget.release(frame)
        added_bytes = sum([frame.nbytes - FRAME_OVERHEAD_BYTES for frame in followers])
        first.item = Batch.concat(parts)
        first.next_after_seq, first.batch_end = followers[-1].next_after_seq, followers[-1].batch_end
        first.traces = tuple(chain(first.traces, *[frame.traces for frame in followers]))
        first.nbytes += added_bytes
        self.nbytes -= FRAME_OVERHEAD_BYTES * len(followers)
        del self._frames[start + 1 : stop]
        self._budget.grow(added_bytes)

    def _trim(self) -> None:
        while self.nbytes > self._bytes_max:
            self.drop_oldest()


_DROPPED: Final = RingFrame(Gap(0, 0, 0), 0, 0)
"""Placeholder of an evicted frame, so that its bytes are freed at once."""
