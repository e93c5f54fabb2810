"""Subscription: one topic of one subscriber, as a position and a phase.

SNAPSHOT delivers the current values (`snapshot_phase.py`), LOG takes frames from the topic's ring, GONE has reported
the topic's deletion. A position below the ring's floor reads the log by its cursor until it reaches the ring again; so
does one that began when the ring could still contain deleted records, up to the head at that time. With gap healing, a
gap in LOG leads to SNAPSHOT; the cursors in frames stay before the gap until its end.

I1: `seq` of `epoch` is exactly the position up to which the subscriber received frames; it moves with each frame, and
    past records that its filter hides.
I2: a subscriber costs a position, and at most one fetched answer. I3: only the tail decides when a topic ended or was
    recreated; a read that notices it earlier waits for the tail.
Failure: a fetch is retried after a delay if the store is unreachable; any other error ends the stream.
Threading: event loop only; `step` never waits, jobs run on the fetcher.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import NotKv, TopicNotFound
from eddyline.core.model.read import READ_LIMIT_MAX
from eddyline.core.records.record import Gap, GapReason
from eddyline.delivery.feed.encode import EncodedFrame, FramePosition, item_frame, progress_frame, topic_deleted_frame
from eddyline.delivery.feed.frame_split import FRAME_BYTES
from eddyline.delivery.feed.oversize import NO_LIMIT, fit_frames
from eddyline.delivery.feed.trace import start_send_spans, traceparent
from eddyline.delivery.fetch.job import FetchJob
from eddyline.delivery.resume_token import Cursor, Resume, ResumeState
from eddyline.delivery.schedule.in_flight import PendingRead
from eddyline.delivery.watch.snapshot_phase import SnapshotDeps, SnapshotPhase

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from eddyline.core.model.read import ReadResult
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.core.telemetry.tracing import OpenSpan
    from eddyline.delivery.feed.encode import TopicView
    from eddyline.delivery.feed.oversize import MessageLimit
    from eddyline.delivery.feed.ring import RingFrame
    from eddyline.delivery.feed.tail import TopicTail
    from eddyline.delivery.feed.tails import AllTails
    from eddyline.delivery.fetch.fetcher import Fetcher
    from eddyline.delivery.fetch.scan_slots import ScanSlots
    from eddyline.delivery.schedule.in_flight import WatchReader
    from eddyline.delivery.schedule.timer_wheel import TimerWheel


@dataclass(frozen=True, slots=True)
class SubscriptionDeps:
    """Dependencies of subscriptions."""

    link: StoreLink
    tails: AllTails
    fetcher_of: Callable[[str], Fetcher]
    """By topic: reads that wait for one store do not delay those of another."""
    slots: ScanSlots
    wheel: TimerWheel
    random: Random
    request: Callable[[TopicTail, PendingRead, int], bool]
    """Requests the next frame of a topic: True = there is one, else the subscription is woken when there is."""
    on_sent: Callable[[PendingRead], None]
    """Reports that a subscription's frames are sent."""
    remove: Callable[[TopicTail, PendingRead], None]
    """Removes a subscription."""


class SubscriptionPhase(Enum):
    """Content of a subscription's next frames; GONE = its topic was deleted."""

    SNAPSHOT = 1
    LOG = 2
    GONE = 3


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Start of a subscription. `target_seq` is the topic's head at that time: caught up = reached. GONE = deleted.

    `old_epoch` is not 0 if the subscriber's cursor, at `old_seq`, was of a deleted topic of this name. `heals` = a gap
    leads to a snapshot; `resumes` = an interrupted snapshot may continue. With `after_key` (see `snapshot_phase.py`)
    `seq` is the point of the delivered keys.
    """

    phase: SubscriptionPhase
    epoch: int
    seq: int
    target_seq: int
    old_epoch: int = 0
    old_seq: int = 0
    heals: bool = False
    resumes: bool = False
    after_key: bytes = b""


class SubscriptionStep(NamedTuple):
    """Frames of one step. `more` = take another step when these are sent."""

    frames: tuple[EncodedFrame, ...] = ()
    more: bool = False


_IDLE: Final = SubscriptionStep()
_MORE: Final = SubscriptionStep((), more=True)


class Subscription:
    """One topic of one subscriber."""

    def __init__(
        self,
        topic: str,
        view: TopicView,
        deps: SubscriptionDeps,
        wake: Callable[[Subscription], None],
        *,
        limit: MessageLimit = NO_LIMIT,
    ) -> None:
        self.topic = topic
        self.view = view
        self._limit = limit
        self.queued = False
        self.phase = SubscriptionPhase.LOG
        self.epoch = 0
        self.seq = 0
        self._deps = deps
        self._wake = wake
        self._waiter = PendingRead(self.wake, self._advance)
        self.was_followed = topic in deps.tails
        """True = another subscriber had its tail fitting: the tail's information may be older than this subscription."""
        self._tail = deps.tails.attach(topic, self.wake)
        self._begin = StartPosition(SubscriptionPhase.LOG, 0, 0, 0)
        self._read_to_seq = 0
        self._old_epoch = 0
        self._deletion_unsent = False
        self._reported_seq = 0
        self._has_partial_append = False
        """True = the reader has part of an append, according to the frames sent."""
        self._fetching = FetchJob(deps.fetcher_of(topic), wheel=deps.wheel, random=deps.random, wake=self.wake)
        self._fetched: ReadResult | None = None
        self._snapshot: SnapshotPhase | None = None
        self._sends: tuple[OpenSpan, ...] = ()
        """Of the frame that is being sent."""

    def begin(self, start: StartPosition, view: TopicView, *, delete_mark: int = 0) -> None:
        """Set the start position and the view. Called before the first step.

        `delete_mark` = the topic's when its head was read: if the tail has another one, the ring may contain records
        that were deleted before then.
        """
        self._begin = start
        self._read_to_seq = start.target_seq if delete_mark != self._tail.delete_mark else 0
        self.view = view
        self.phase, self.epoch, self.seq = start.phase, start.epoch, start.seq
        self._old_epoch = start.old_epoch
        self._reported_seq = start.seq
        self._deletion_unsent = start.phase is SubscriptionPhase.GONE
        if start.phase is SubscriptionPhase.GONE:
            self._deps.tails.detach(self._tail, self.wake)
        elif start.phase is SubscriptionPhase.SNAPSHOT:
            self._snapshot = self._new_snapshot(None, after_key=start.after_key)

    @property
    def tail(self) -> TopicTail:
        """The tail it listens to."""
        return self._tail

    @property
    def caught_up(self) -> bool:
        """True = it has received all records up to the topic's head at the start."""
        if self.phase is SubscriptionPhase.LOG:
            return not self._old_epoch and (self.epoch != self._begin.epoch or self.seq >= self._begin.target_seq)
        return self.phase is SubscriptionPhase.GONE and not self._deletion_unsent

    @property
    def reads_log(self) -> bool:
        """True = its next records are read by its cursor: the ring has evicted them, or may contain deleted ones."""
        if self.epoch == self._begin.epoch and self.seq < self._read_to_seq:
            return True
        return self.seq < self._tail.ring.floor_seq

    @property
    def resume(self) -> Resume:
        """Position for a token."""
        if self._old_epoch:
            # A token before the gap must not be behind the cursor in the frames.
            return Resume(Cursor(self.topic, self._old_epoch, self._begin.old_seq), ResumeState.LOG)
        if self._snapshot is None:
            return Resume(Cursor(self.topic, self.epoch, self.seq), ResumeState.LOG)
        if self._snapshot.after_key:
            cursor = Cursor(self.topic, self._snapshot.epoch, self._snapshot.seq)
            return Resume(cursor, ResumeState.KEYS, self._snapshot.after_key)
        return Resume(Cursor(self.topic, self.epoch, self._snapshot.seq or self.seq), ResumeState.SNAPSHOT)

    def wake(self) -> None:
        """Request a step: there may be new frames."""
        self._wake(self)

    def step(self) -> SubscriptionStep:
        """Take a step: return frames to send, and whether to continue. Raises the error that ends the stream."""
        self._waiter.view = None
        if self._fetching.failure is not None:
            if not (self._begin.heals and isinstance(self._fetching.failure, NotKv)):
                raise self._fetching.failure
            self._give_up_healing()
        if self.phase is SubscriptionPhase.GONE:
            return self._deleted_step() if self._deletion_unsent else _IDLE
        ring_epoch = self._tail.ring.epoch
        if self._old_epoch:
            return self._recreated(self._old_epoch, self.epoch)
        if ring_epoch > self.epoch:
            return self._recreated(self.epoch, ring_epoch)
        if self._snapshot is not None:
            return self._snapshot_step(self._snapshot)
        if ring_epoch == self.epoch:
            return self._log_step()
        return self._ended() if self._tail.ended is not None else _IDLE

    def use_reader(self, reader: WatchReader) -> None:
        """Use the reader of its stream."""
        self._waiter.reader = reader

    def on_sent(self) -> None:
        """Handle the completion of the last step: its frames are sent."""
        if self._sends:
            for span in self._sends:
                span.end()
            self._sends = ()
        self._deps.on_sent(self._waiter)

    def progress(self) -> EncodedFrame | None:
        """Return a progress frame, if no frame has reported its position."""
        if self.phase is not SubscriptionPhase.LOG or self._old_epoch or self._reported_seq == self.seq:
            return None
        self._reported_seq = self.seq
        return progress_frame(FramePosition(self.topic, self.epoch, self.seq))

    def close(self) -> None:
        """Leave the dispatcher and the tail, and drop the running fetch."""
        self._deps.remove(self._tail, self._waiter)
        self._deps.tails.detach(self._tail, self.wake)
        self._drop_fetch()

    # the log -----------------------------------------------------------------------------------------------------

    def _log_step(self) -> SubscriptionStep:
        fetched, self._fetched = self._fetched, None
        if fetched is not None:
            return self._deliver_read(fetched)
        ring = self._tail.ring
        if not self.reads_log:
            if self.seq < ring.open_seq or self._request():
                frame = ring.frame_after(self.seq)
                if frame is not None:
                    return self._deliver_ring(frame)
            if self.seq < ring.end_seq:
                return _IDLE  # its topic waits for a turn
        elif self._tail.ended is None:
            self._fetch_read()
            return _IDLE
        return self._ended() if self._tail.ended is not None else _IDLE

    def _request(self) -> bool:
        """Request the next frame of the ring; True = it is open."""
        self._waiter.view = self.view
        return self._deps.request(self._tail, self._waiter, self.seq)

    def _advance(self, seq: int, batch_end: bool, is_hidden: bool) -> bool:
        """Move past a frame that was sent past the stream's task, or that the filter hides; False = `_hidden` reports it."""
        if is_hidden:
            if self._has_partial_append and batch_end:
                return False
            self.seq = seq
            return True
        self.seq = self._reported_seq = seq
        self._has_partial_append = not batch_end
        return True

    def _deliver_ring(self, frame: RingFrame) -> SubscriptionStep:
        if isinstance(frame.item, Gap) and self._begin.heals:
            return SubscriptionStep((self._heal(frame.item, frame.next_after_seq),), more=True)
        position, item = FramePosition(self.topic, self.epoch, frame.next_after_seq, frame.batch_end), frame.item
        if frame.after_seq == self.seq or isinstance(item, Gap):
            encoded = self._tail.ring.encoded(frame, self.view)
        else:
            # a cursor within the frame: only this subscriber needs the rest of it
            item = item.slice(item.index_after(self.seq), item.count)
            encoded = item_frame(position, item, self.view, traceparent(frame.traces))
        frames = fit_frames(encoded, position, item, self.view, self._limit)
        self.seq = frame.next_after_seq
        if not frames:
            return self._hidden(position)
        if frame.traces:
            self._sends = start_send_spans(frame.traces)
        self._reported_seq = self.seq
        self._has_partial_append = not position.batch_end
        return SubscriptionStep(frames, more=True)

    def _hidden(self, position: FramePosition) -> SubscriptionStep:
        """Handle a frame of which the filter hid all: report progress if it ends an append that the reader has in part."""
        if not (self._has_partial_append and position.batch_end):
            return _MORE
        self._has_partial_append = False
        self._reported_seq = position.seq
        return SubscriptionStep((progress_frame(position),), more=True)

    def _deliver_read(self, result: ReadResult) -> SubscriptionStep:
        """Return frames of a read below the ring.

        The last frame's cursor passes the records that the filter hides at the end.
        """
        frames: list[EncodedFrame] = []
        last = len(result.items) - 1
        for index, item in enumerate(result.items):
            own_seq = item.own_seq if isinstance(item, Gap) else item.last_seq
            if isinstance(item, Gap) and self._begin.heals:
                frames.append(self._heal(item, own_seq))
                return SubscriptionStep(tuple(frames), more=True)
            seq = result.next_after_seq if index == last else own_seq
            position = FramePosition(self.topic, self.epoch, seq, index == last and result.batch_end)
            fitting = fit_frames(item_frame(position, item, self.view), position, item, self.view, self._limit)
            self.seq = seq
            if fitting:
                frames += fitting
                self._reported_seq = seq
                self._has_partial_append = not position.batch_end
        self.seq = result.next_after_seq
        if not frames:
            return self._hidden(FramePosition(self.topic, self.epoch, self.seq, result.batch_end))
        return SubscriptionStep(tuple(frames), more=True)

    def _fetch_read(self) -> None:
        if self._fetching.busy:
            return
        after_seq, epoch = self.seq, self.epoch

        async def read(wanted: Callable[[], bool]) -> bool:
            if not wanted():
                return False
            result = await self._deps.link.read_records(
                self.topic,
                after_seq=after_seq,
                epoch=epoch,
                limit=READ_LIMIT_MAX,
                max_bytes=FRAME_BYTES,
                record_filter=self.view.record_filter,
            )
            if not wanted() or result.epoch != epoch or result.next_after_seq <= after_seq:
                # another topic of this name, which the tail reports in its turn; or a store that is behind the tail
                return False
            self._fetched = result
            return True

        self._fetching.start(read)

    # the fold ----------------------------------------------------------------------------------------------------

    def _new_snapshot(self, position: FramePosition | None, *, after_key: bytes = b"") -> SnapshotPhase:
        sources = SnapshotDeps(self._deps.link, self._deps.slots, self._fetching, self.wake, self._begin.resumes)
        return SnapshotPhase(
            self.topic,
            self.view,
            sources,
            limit=self._limit,
            epoch=self.epoch,
            position=position,
            seq=self.seq if after_key else 0,
            after_key=after_key,
        )

    def _snapshot_step(self, snapshot: SnapshotPhase) -> SubscriptionStep:
        step = snapshot.step()
        if step is None:
            return self._ended() if self._tail.ended is not None else _IDLE
        self.epoch = snapshot.epoch
        if step.ended:
            self._has_partial_append = False
            self.seq = self._reported_seq = snapshot.seq
            self._snapshot = None
            self.phase = SubscriptionPhase.LOG
        return SubscriptionStep(step.frames, more=True)

    def _heal(self, gap: Gap, seq: int) -> EncodedFrame:
        """Report a gap, and start a snapshot. The cursors stay at their position until it is complete."""
        position = FramePosition(self.topic, self.epoch, self.seq)
        self._drop_fetch()
        self.phase = SubscriptionPhase.SNAPSHOT
        self.seq = seq
        self._snapshot = self._new_snapshot(position)
        return item_frame(position, gap, self.view)

    def _give_up_healing(self) -> None:
        """Continue with the log: the topic was recreated without a fold."""
        self._fetching.failure = None
        self._drop_fetch()
        self.phase = SubscriptionPhase.LOG
        self._snapshot = None

    # what both share ---------------------------------------------------------------------------------------------

    def _drop_fetch(self) -> None:
        """Drop the fetched answer and the running fetch."""
        if self._snapshot is not None:
            self._snapshot.interrupt()
        self._fetching.drop()
        self._fetched = None

    def _recreated(self, old_epoch: int, new_epoch: int) -> SubscriptionStep:
        gap = Gap(0, 0, GapReason.RECREATED, old_epoch=old_epoch, new_epoch=new_epoch)
        self._drop_fetch()
        self._old_epoch = 0
        if self._begin.heals:
            position = FramePosition(self.topic, old_epoch, self.seq if self.epoch == old_epoch else 0)
            self.epoch, self.seq = new_epoch, 0
            self.phase = SubscriptionPhase.SNAPSHOT
            self._snapshot = self._new_snapshot(position)
            return SubscriptionStep((item_frame(position, gap, self.view),), more=True)
        self.epoch, self.seq = new_epoch, 0
        self._reported_seq = 0
        if self._snapshot is not None:
            self._snapshot = self._new_snapshot(None)
        self._has_partial_append = False
        return SubscriptionStep(
            (item_frame(FramePosition(self.topic, new_epoch, 0, batch_end=True), gap, self.view),), more=True
        )

    def _ended(self) -> SubscriptionStep:
        """Handle the end of the tail, after all its records are delivered or evicted."""
        error = self._tail.error()
        if not isinstance(error, TopicNotFound):
            raise error
        self._drop_fetch()
        self._deps.tails.detach(self._tail, self.wake)
        tail_epoch = self._tail.ring.epoch
        if tail_epoch < self.epoch and (tail_epoch or self.was_followed):
            # the tail was of an older topic of this name, or ended before this one existed
            self.was_followed = self.topic in self._deps.tails
            self._tail = self._deps.tails.attach(self.topic, self.wake)
            return _MORE
        return self._deleted_step()

    def _deleted_step(self) -> SubscriptionStep:
        self.phase = SubscriptionPhase.GONE
        self._snapshot = None
        self._deletion_unsent = False
        return SubscriptionStep((topic_deleted_frame(FramePosition(self.topic, self.epoch, self.seq)),))
