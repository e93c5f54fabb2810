"""A subscription: one topic of one subscriber, as a position and a phase.

SNAPSHOT brings the current values (`snapshot_pass.py`), LOG takes frames from the topic's ring, GONE has said that the topic
was deleted. A position below the ring's floor reads the log by its cursor until it meets the ring again; so does one that
began when the ring could still have what was deleted before, up to the head of then. Where gaps are healed, one that is met
in LOG leads to SNAPSHOT; the cursors that are told stay before the gap until its end.

I1: `seq` of `epoch` is exactly what the subscriber was given; it moves with each frame, and past what its filter hides.
I2: nothing but a position is kept for a subscriber, and at most one answer fetched for it. I3: the tail alone says when a
topic ended or was made anew; a read that sees it earlier waits for the tail.
Failure: a fetch that finds the store away is tried again after a while; any other error ends the stream.
Threading: event loop only; `step` never waits, jobs run on the fetcher.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import NotKv, TopicNotFound
from eddyline.core.model.read import READ_LIMIT_MAX
from eddyline.core.records.record import Gap, GapReason
from eddyline.delivery.feed.encode import Frame, Place, item_frame, progress_frame, topic_deleted_frame
from eddyline.delivery.feed.frame_split import FRAME_BYTES
from eddyline.delivery.feed.oversize import ANY_ROOM, fitted
from eddyline.delivery.feed.trace import sends, traceparent
from eddyline.delivery.fetch.job import FetchJob
from eddyline.delivery.resume_token import Cursor, Resume, ResumeState
from eddyline.delivery.schedule.in_flight import PendingRead
from eddyline.delivery.watch.snapshot_phase import SnapshotPhase, Sources

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from eddyline.core.model.read import ReadResult
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.core.telemetry.tracing import OpenSpan
    from eddyline.delivery.feed.encode import View
    from eddyline.delivery.feed.oversize import Room
    from eddyline.delivery.feed.ring import RingFrame
    from eddyline.delivery.feed.tail import TopicTail
    from eddyline.delivery.feed.tails import AllTails
    from eddyline.delivery.fetch.fetcher import Fetcher
    from eddyline.delivery.fetch.scan_slots import ScanSlots
    from eddyline.delivery.schedule.in_flight import ReaderSpeed
    from eddyline.delivery.schedule.timer_wheel import TimerWheel


@dataclass(frozen=True, slots=True)
class SubscriptionDeps:
    """Where subscriptions get what they deliver."""

    link: StoreLink
    tails: AllTails
    fetcher_of: Callable[[str], Fetcher]
    """By topic: reads that wait for one store do not hold up those of another."""
    slots: ScanSlots
    wheel: TimerWheel
    random: Random
    ask: Callable[[TopicTail, PendingRead, int], bool]
    """More of a topic, for one that has all that is open: True = there is, else it is woken when there is."""
    sent: Callable[[PendingRead], None]
    """What one took is sent."""
    leave: Callable[[TopicTail, PendingRead], None]
    """One asks no more."""


class Phase(Enum):
    """What a subscription is doing."""

    SNAPSHOT = 1
    LOG = 2
    GONE = 3


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where a subscription begins. `target_seq` is the head the topic had then: level = there. GONE = it is told so.

    `old_epoch` is not 0 where the subscriber's cursor, at `old_seq`, was of another topic of this name. `heals` = a gap
    leads to a snapshot; `resumes` = one that broke off may go on. `after_key`: see `snapshot_pass.py`; with it `seq` is
    where the keys stand.
    """

    phase: Phase
    epoch: int
    seq: int
    target_seq: int
    old_epoch: int = 0
    old_seq: int = 0
    heals: bool = False
    resumes: bool = False
    after_key: bytes = b""


class Step(NamedTuple):
    """What a turn gave. `more` = take another turn when these are sent."""

    frames: tuple[Frame, ...] = ()
    more: bool = False


_IDLE: Final = Step()
_MORE: Final = Step((), more=True)


class Subscription:
    """One topic of one subscriber; see the module."""

    def __init__(
        self,
        topic: str,
        view: View,
        feeds: SubscriptionDeps,
        wake: Callable[[Subscription], None],
        *,
        room: Room = ANY_ROOM,
    ) -> None:
        self.topic = topic
        self.view = view
        self._room = room
        self.queued = False
        self.phase = Phase.LOG
        self.epoch = 0
        self.seq = 0
        self._feeds = feeds
        self._wake = wake
        self._waiter = PendingRead(self.wake)
        self.was_followed = topic in feeds.tails
        """Somebody else had its tail made: what that says may be older than this subscription."""
        self._tail = feeds.tails.attach(topic, self.wake)
        self._begin = StartPosition(Phase.LOG, 0, 0, 0)
        self._read_to_seq = 0
        self._old_epoch = 0
        self._deletion_unsent = False
        self._reported_seq = 0
        self._holds = False
        """Its reader has a part of an append, as far as it was told."""
        self._fetching = FetchJob(feeds.fetcher_of(topic), wheel=feeds.wheel, random=feeds.random, wake=self.wake)
        self._fetched: ReadResult | None = None
        self._pass: SnapshotPhase | None = None
        self._sends: tuple[OpenSpan, ...] = ()
        """Of the frame that is being sent."""

    def begin(self, begin: StartPosition, view: View, *, delete_mark: int = 0) -> None:
        """Set where it starts, and what it shows. Before the first step. `delete_mark` = the topic's when its head was
        asked for: where the tail has heard another one, what was deleted before then may be in the ring."""
        self._begin = begin
        self._read_to_seq = begin.target_seq if delete_mark != self._tail.delete_mark else 0
        self.view = view
        self.phase, self.epoch, self.seq = begin.phase, begin.epoch, begin.seq
        self._old_epoch = begin.old_epoch
        self._reported_seq = begin.seq
        self._deletion_unsent = begin.phase is Phase.GONE
        if begin.phase is Phase.GONE:
            self._feeds.tails.detach(self._tail, self.wake)
        elif begin.phase is Phase.SNAPSHOT:
            self._pass = self._new_pass(None, after_key=begin.after_key)

    @property
    def tail(self) -> TopicTail:
        """The tail it listens to."""
        return self._tail

    @property
    def level(self) -> bool:
        """True = it has all that the topic had at the start."""
        if self.phase is Phase.LOG:
            return not self._old_epoch and (self.epoch != self._begin.epoch or self.seq >= self._begin.target_seq)
        return self.phase is Phase.GONE and not self._deletion_unsent

    @property
    def reads_log(self) -> bool:
        """True = its next records are read by its cursor: the ring has them no more, or may have what was deleted."""
        if self.epoch == self._begin.epoch and self.seq < self._read_to_seq:
            return True
        return self.seq < self._tail.ring.floor_seq

    @property
    def resume(self) -> Resume:
        """Where it goes on, for a token."""
        if self._old_epoch:
            # A token before the gap is not behind the cursor that was shown.
            return Resume(Cursor(self.topic, self._old_epoch, self._begin.old_seq), ResumeState.LOG)
        if self._pass is None:
            return Resume(Cursor(self.topic, self.epoch, self.seq), ResumeState.LOG)
        if self._pass.after_key:
            cursor = Cursor(self.topic, self._pass.epoch, self._pass.seq)
            return Resume(cursor, ResumeState.KEYS, self._pass.after_key)
        return Resume(Cursor(self.topic, self.epoch, self._pass.seq or self.seq), ResumeState.SNAPSHOT)

    def wake(self) -> None:
        """There may be something new: ask for a turn."""
        self._wake(self)

    def step(self) -> Step:
        """Take a turn: frames to send, and whether to come again. Raises what ends the stream."""
        if self._fetching.failure is not None:
            if not (self._begin.heals and isinstance(self._fetching.failure, NotKv)):
                raise self._fetching.failure
            self._give_up_healing()
        if self.phase is Phase.GONE:
            return self._say_deleted() if self._deletion_unsent else _IDLE
        ring_epoch = self._tail.ring.epoch
        if self._old_epoch:
            return self._recreated(self._old_epoch, self.epoch)
        if ring_epoch > self.epoch:
            return self._recreated(self.epoch, ring_epoch)
        if self._pass is not None:
            return self._snapshot_step(self._pass)
        if ring_epoch == self.epoch:
            return self._log_step()
        return self._ended() if self._tail.ended is not None else _IDLE

    def keep_pace(self, pace: ReaderSpeed) -> None:
        """It is of the stream whose pace this is."""
        self._waiter.pace = pace

    def sent(self) -> None:
        """The frames of the last step are sent."""
        if self._sends:
            for span in self._sends:
                span.end()
            self._sends = ()
        self._feeds.sent(self._waiter)

    def progress(self) -> Frame | None:
        """A frame that tells its position, where no frame has."""
        if self.phase is not Phase.LOG or self._old_epoch or self._reported_seq == self.seq:
            return None
        self._reported_seq = self.seq
        return progress_frame(Place(self.topic, self.epoch, self.seq))

    def close(self) -> None:
        """Let go of everything."""
        self._feeds.leave(self._tail, self._waiter)
        self._feeds.tails.detach(self._tail, self.wake)
        self._drop_fetch()

    # the log -----------------------------------------------------------------------------------------------------

    def _log_step(self) -> Step:
        fetched, self._fetched = self._fetched, None
        if fetched is not None:
            return self._deliver_read(fetched)
        ring = self._tail.ring
        if not self.reads_log:
            if self.seq < ring.open_seq or self._feeds.ask(self._tail, self._waiter, self.seq):
                frame = ring.after(self.seq)
                if frame is not None:
                    return self._deliver_ring(frame)
            if self.seq < ring.end_seq:
                return _IDLE  # its turn comes
        elif self._tail.ended is None:
            self._fetch_read()
            return _IDLE
        return self._ended() if self._tail.ended is not None else _IDLE

    def _deliver_ring(self, frame: RingFrame) -> Step:
        if isinstance(frame.item, Gap) and self._begin.heals:
            return Step((self._heal(frame.item, frame.next_after_seq),), more=True)
        place, item = Place(self.topic, self.epoch, frame.next_after_seq, frame.batch_end), frame.item
        if frame.after_seq == self.seq or isinstance(item, Gap):
            found = self._tail.ring.encoded(frame, self.view)
        else:
            # a cursor within the frame: the rest of it is this subscriber's alone
            item = item.slice(item.index_after(self.seq), item.count)
            found = item_frame(place, item, self.view, traceparent(frame.traces))
        frames = fitted(found, place, item, self.view, self._room)
        self.seq = frame.next_after_seq
        if not frames:
            return self._hidden(place)
        if frame.traces:
            self._sends = sends(frame.traces)
        self._reported_seq = self.seq
        self._holds = not place.batch_end
        return Step(frames, more=True)

    def _hidden(self, place: Place) -> Step:
        """All of what leads to `place` was hidden: said where it ends an append of which the reader has a part."""
        if not (self._holds and place.batch_end):
            return _MORE
        self._holds = False
        self._reported_seq = place.seq
        return Step((progress_frame(place),), more=True)

    def _deliver_read(self, result: ReadResult) -> Step:
        """Frames of a read below the ring. What its end hides by the filter, the last frame's cursor passes."""
        frames: list[Frame] = []
        last = len(result.items) - 1
        for index, item in enumerate(result.items):
            own_seq = item.own_seq if isinstance(item, Gap) else item.last_seq
            if isinstance(item, Gap) and self._begin.heals:
                frames.append(self._heal(item, own_seq))
                return Step(tuple(frames), more=True)
            seq = result.next_after_seq if index == last else own_seq
            place = Place(self.topic, self.epoch, seq, index == last and result.batch_end)
            made = fitted(item_frame(place, item, self.view), place, item, self.view, self._room)
            self.seq = seq
            if made:
                frames += made
                self._reported_seq = seq
                self._holds = not place.batch_end
        self.seq = result.next_after_seq
        if not frames:
            return self._hidden(Place(self.topic, self.epoch, self.seq, result.batch_end))
        return Step(tuple(frames), more=True)

    def _fetch_read(self) -> None:
        if self._fetching.busy:
            return
        after_seq, epoch = self.seq, self.epoch

        async def read(wanted: Callable[[], bool]) -> bool:
            if not wanted():
                return False
            result = await self._feeds.link.read_records(
                self.topic,
                after_seq=after_seq,
                epoch=epoch,
                limit=READ_LIMIT_MAX,
                max_bytes=FRAME_BYTES,
                record_filter=self.view.record_filter,
            )
            if not wanted() or result.epoch != epoch or result.next_after_seq <= after_seq:
                # another topic of this name, which the tail says in its turn; or a store that is behind the tail
                return False
            self._fetched = result
            return True

        self._fetching.start(read)

    # the fold ----------------------------------------------------------------------------------------------------

    def _new_pass(self, place: Place | None, *, after_key: bytes = b"") -> SnapshotPhase:
        sources = Sources(self._feeds.link, self._feeds.slots, self._fetching, self.wake, self._begin.resumes)
        return SnapshotPhase(
            self.topic,
            self.view,
            sources,
            room=self._room,
            epoch=self.epoch,
            place=place,
            seq=self.seq if after_key else 0,
            after_key=after_key,
        )

    def _snapshot_step(self, under_way: SnapshotPhase) -> Step:
        step = under_way.step()
        if step is None:
            return self._ended() if self._tail.ended is not None else _IDLE
        self.epoch = under_way.epoch
        if step.ended:
            self._holds = False
            self.seq = self._reported_seq = under_way.seq
            self._pass = None
            self.phase = Phase.LOG
        return Step(step.frames, more=True)

    def _heal(self, gap: Gap, seq: int) -> Frame:
        """Tell a gap, and go over to the current values. The cursors stay where they are until these are complete."""
        place = Place(self.topic, self.epoch, self.seq)
        self._drop_fetch()
        self.phase = Phase.SNAPSHOT
        self.seq = seq
        self._pass = self._new_pass(place)
        return item_frame(place, gap, self.view)

    def _give_up_healing(self) -> None:
        """The topic was made anew without fold: its log is all there is."""
        self._fetching.failure = None
        self._drop_fetch()
        self.phase = Phase.LOG
        self._pass = None

    # what both share ---------------------------------------------------------------------------------------------

    def _drop_fetch(self) -> None:
        """Forget what is fetched or being fetched."""
        if self._pass is not None:
            self._pass.break_off()
        self._fetching.drop()
        self._fetched = None

    def _recreated(self, old_epoch: int, new_epoch: int) -> Step:
        gap = Gap(0, 0, GapReason.RECREATED, old_epoch=old_epoch, new_epoch=new_epoch)
        self._drop_fetch()
        self._old_epoch = 0
        if self._begin.heals:
            place = Place(self.topic, old_epoch, self.seq if self.epoch == old_epoch else 0)
            self.epoch, self.seq = new_epoch, 0
            self.phase = Phase.SNAPSHOT
            self._pass = self._new_pass(place)
            return Step((item_frame(place, gap, self.view),), more=True)
        self.epoch, self.seq = new_epoch, 0
        self._reported_seq = 0
        if self._pass is not None:
            self._pass = self._new_pass(None)
        self._holds = False
        return Step((item_frame(Place(self.topic, new_epoch, 0, batch_end=True), gap, self.view),), more=True)

    def _ended(self) -> Step:
        """The tail ended, and all it had is delivered or out of reach."""
        error = self._tail.error()
        if not isinstance(error, TopicNotFound):
            raise error
        self._drop_fetch()
        self._feeds.tails.detach(self._tail, self.wake)
        tail_epoch = self._tail.ring.epoch
        if tail_epoch < self.epoch and (tail_epoch or self.was_followed):
            # it was the tail of an older topic of this name, or ended before there was this one
            self.was_followed = self.topic in self._feeds.tails
            self._tail = self._feeds.tails.attach(self.topic, self.wake)
            return _MORE
        return self._say_deleted()

    def _say_deleted(self) -> Step:
        self.phase = Phase.GONE
        self._pass = None
        self._deletion_unsent = False
        return Step((topic_deleted_frame(Place(self.topic, self.epoch, self.seq)),))
