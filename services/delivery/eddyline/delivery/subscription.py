"""A subscription: one topic of one subscriber, as a position and a phase.

SNAPSHOT reads the fold at one point, as soon as it has a scan slot, LOG takes frames from the topic's ring, GONE has said
that the topic was deleted. A position below the ring's floor reads the log by its cursor until it meets the ring again.

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

from eddyline.core.backoff import Backoff
from eddyline.core.errors import Code, EddylineError, TopicNotFound
from eddyline.core.read import READ_LIMIT_MAX, ReadResult
from eddyline.core.record import Gap, GapReason
from eddyline.delivery.encode import (
    Frame,
    Place,
    item_frame,
    snapshot_begin_frame,
    snapshot_end_frame,
    topic_deleted_frame,
)
from eddyline.delivery.pieces import FRAME_BYTES
from eddyline.delivery.snapshot import Snapshot
from eddyline.delivery.under_way import Waiter

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from eddyline.core.store_link import StoreLink
    from eddyline.delivery.encode import View
    from eddyline.delivery.fetch import Fetcher
    from eddyline.delivery.ring import RingFrame
    from eddyline.delivery.scan_slots import ScanSlots
    from eddyline.delivery.snapshot import SnapshotPart
    from eddyline.delivery.tail import Tails, TopicTail
    from eddyline.delivery.under_way import Pace
    from eddyline.delivery.wheel import Deadline, Wheel

RETRY_S_MAX: Final = 2.0
"""A store that restarts is back in about a second; a fetch every second on average while it is not."""

_PASSING: Final = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED)


@dataclass(frozen=True, slots=True)
class Feeds:
    """Where subscriptions get what they deliver."""

    link: StoreLink
    tails: Tails
    fetcher: Fetcher
    slots: ScanSlots
    wheel: Wheel
    random: Random
    ask: Callable[[TopicTail, Waiter, int], bool]
    """More of a topic, for one that has all that is open: True = there is, else it is woken when there is."""
    sent: Callable[[Waiter], None]
    """What one took is sent."""
    leave: Callable[[TopicTail, Waiter], None]
    """One asks no more."""


class Phase(Enum):
    """What a subscription is doing."""

    SNAPSHOT = 1
    LOG = 2
    GONE = 3


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a subscription begins. `target_seq` is the head the topic had then: level = there. GONE = it is told so.

    `old_epoch` is not 0 where the subscriber's cursor was of another topic of this name.
    """

    phase: Phase
    epoch: int
    seq: int
    target_seq: int
    old_epoch: int = 0


class Step(NamedTuple):
    """What a turn gave. `more` = take another turn when these are sent."""

    frames: tuple[Frame, ...] = ()
    more: bool = False


_IDLE: Final = Step()
_MORE: Final = Step((), more=True)


class Subscription:
    """One topic of one subscriber; see the module."""

    def __init__(self, topic: str, view: View, feeds: Feeds, wake: Callable[[Subscription], None]) -> None:
        self.topic = topic
        self.view = view
        self.queued = False
        self.phase = Phase.LOG
        self.epoch = 0
        self.seq = 0
        self._feeds = feeds
        self._wake = wake
        self._waiter = Waiter(self.wake)
        self._tail = feeds.tails.attach(topic, self.wake)
        self._begin = Begin(Phase.LOG, 0, 0, 0)
        self._old_epoch = 0
        self._farewell = False
        self._snapshot: Snapshot | None = None
        self._given_way = 0
        self._fetching = False
        self._fetched: ReadResult | None = None
        self._failure: EddylineError | None = None
        self._generation = 0
        self._backoff = Backoff(feeds.random, cap_s=RETRY_S_MAX)
        self._retry: Deadline | None = None

    def begin(self, begin: Begin) -> None:
        """Set where it starts. Before the first step."""
        self._begin = begin
        self.phase, self.epoch, self.seq = begin.phase, begin.epoch, begin.seq
        self._old_epoch = begin.old_epoch
        self._farewell = begin.phase is Phase.GONE
        if begin.phase is Phase.GONE:
            self._feeds.tails.detach(self._tail, self.wake)

    @property
    def tail(self) -> TopicTail:
        """The tail it listens to."""
        return self._tail

    @property
    def level(self) -> bool:
        """True = it has all that the topic had at the start."""
        if self.phase is Phase.LOG:
            return not self._old_epoch and (self.epoch != self._begin.epoch or self.seq >= self._begin.target_seq)
        return self.phase is Phase.GONE and not self._farewell

    def wake(self) -> None:
        """There may be something new: ask for a turn."""
        self._wake(self)

    def step(self) -> Step:
        """Take a turn: frames to send, and whether to come again. Raises what ends the stream."""
        if self._failure is not None:
            raise self._failure
        if self.phase is Phase.GONE:
            return self._say_deleted() if self._farewell else _IDLE
        ring_epoch = self._tail.ring.epoch
        if self._old_epoch:
            return self._recreated(self._old_epoch, self.epoch)
        if ring_epoch > self.epoch:
            return self._recreated(self.epoch, ring_epoch)
        if self.phase is Phase.SNAPSHOT:
            return self._snapshot_step()
        if ring_epoch == self.epoch:
            return self._log_step()
        return self._ended() if self._tail.ended is not None else _IDLE

    def keep_pace(self, pace: Pace) -> None:
        """It is of the stream whose pace this is."""
        self._waiter.pace = pace

    def sent(self) -> None:
        """The frames of the last step are sent."""
        self._feeds.sent(self._waiter)

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
        if self.seq >= ring.floor_seq:
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
        if frame.after_seq == self.seq or isinstance(frame.item, Gap):
            found = self._tail.ring.encoded(frame, self.view)
        else:
            # a cursor within the frame: the rest of it is this subscriber's alone
            rest = frame.item.slice(frame.item.index_after(self.seq), frame.item.count)
            found = item_frame(Place(self.topic, self.epoch, frame.next_after_seq), rest, self.view)
        self.seq = frame.next_after_seq
        return Step((found,), more=True) if found.data else _MORE

    def _deliver_read(self, result: ReadResult) -> Step:
        """Frames of a read below the ring. What its end hides by the filter, the last frame's cursor passes."""
        frames: list[Frame] = []
        last = len(result.items) - 1
        for index, item in enumerate(result.items):
            own_seq = item.own_seq if isinstance(item, Gap) else item.last_seq
            seq = result.next_after_seq if index == last else own_seq
            found = item_frame(Place(self.topic, self.epoch, seq), item, self.view)
            if found.data:
                frames.append(found)
        self.seq = result.next_after_seq
        return Step(tuple(frames), more=True)

    def _fetch_read(self) -> None:
        if self._fetching or self._retry is not None:
            return
        generation = self._generation
        after_seq, epoch = self.seq, self.epoch

        async def read() -> None:
            if generation != self._generation:
                return
            try:
                result = await self._feeds.link.read_records(
                    self.topic,
                    after_seq=after_seq,
                    epoch=epoch,
                    limit=READ_LIMIT_MAX,
                    max_bytes=FRAME_BYTES,
                    record_filter=self.view.record_filter,
                )
            except EddylineError as error:
                self._failed(error, generation)
                return
            if result.epoch == epoch and result.next_after_seq > after_seq:
                self._got(result, generation)
            else:
                # another topic of this name, which the tail says in its turn; or a store that is behind the tail
                self._rest(generation)

        self._fetching = True
        self._feeds.fetcher.submit(read)

    # the fold ----------------------------------------------------------------------------------------------------

    def _snapshot_step(self) -> Step:
        if self._snapshot is not None and not self._fetching:
            part = self._snapshot.take()
            if part is not None:
                return self._deliver_part(part, self._snapshot.count)
        if self._tail.ended is not None:
            return self._ended()
        self._fetch_part()
        return _IDLE

    def _deliver_part(self, part: SnapshotPart, count: int) -> Step:
        self.epoch = part.epoch
        frames: list[Frame] = []
        if part.begins:
            self.seq = part.fold_seq
            frames.append(snapshot_begin_frame(Place(self.topic, part.epoch, 0), part.fold_seq))
        if part.values is not None:
            # its filter has been applied, and there is no other than by key
            frames.append(item_frame(Place(self.topic, part.epoch, 0), part.values, self.view))
        if part.ends:
            place = Place(self.topic, part.epoch, part.fold_seq)
            frames.append(snapshot_end_frame(place, part.fold_seq, count))
            self._snapshot = None
            self.phase = Phase.LOG
        return Step(tuple(frame for frame in frames if frame.data), more=True)

    def _fetch_part(self) -> None:
        if self._fetching or self._retry is not None:
            return
        if self._snapshot is None:
            slot = self._feeds.slots.ask(granted=self.wake, taken_back=self._give_way, given_way=self._given_way)
            self._snapshot = Snapshot(self._feeds.link, self.topic, self.view.record_filter, slot)
        snapshot, generation = self._snapshot, self._generation
        if not snapshot.slot.held:
            return

        async def read() -> None:
            try:
                if generation == self._generation:
                    await snapshot.read()
                    self._got(None, generation)
            except EddylineError as error:
                self._failed(error, generation)
                await snapshot.close()
            if generation != self._generation:
                await snapshot.close()

        snapshot.slot.reading()
        self._fetching = True
        self._feeds.fetcher.submit(read)

    def _give_way(self) -> None:
        """Its subscriber stands still: when it reads on, its snapshot begins anew."""
        self._given_way += 1
        self._drop_fetch()
        self.wake()

    # what both share ---------------------------------------------------------------------------------------------

    def _got(self, fetched: ReadResult | None, generation: int) -> None:
        if generation == self._generation:
            self._fetching = False
            self._fetched = fetched
            self._backoff.reset()
            self.wake()

    def _failed(self, error: EddylineError, generation: int) -> None:
        if generation != self._generation:
            return
        self._snapshot = None
        if error.code in _PASSING or isinstance(error, TopicNotFound):
            # a topic that is not there any more: the tail says so in its turn
            self._rest(generation, asked_s=int(error.metadata.get("retryAfterMs", "0")) / 1000)
        else:
            self._fetching = False
            self._failure = error
            self.wake()

    def _rest(self, generation: int, *, asked_s: float = 0.0) -> None:
        """Fetch again after a while."""
        if generation == self._generation:
            self._fetching = False
            self._retry = self._feeds.wheel.schedule(self._backoff.next_s(at_least_s=asked_s), self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.wake()

    def _drop_fetch(self) -> None:
        """Forget what is fetched or being fetched."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None and not self._fetching:
            if snapshot.started:
                self._feeds.fetcher.submit(snapshot.close, is_read=False)
            else:
                snapshot.slot.release()
        self._generation += 1
        self._fetching = False
        self._fetched = None
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _recreated(self, old_epoch: int, new_epoch: int) -> Step:
        self._drop_fetch()
        self._old_epoch = 0
        self.epoch, self.seq = new_epoch, 0
        gap = Gap(0, 0, GapReason.RECREATED, old_epoch=old_epoch, new_epoch=new_epoch)
        return Step((item_frame(Place(self.topic, new_epoch, 0), gap, self.view),), more=True)

    def _ended(self) -> Step:
        """The tail ended, and all it had is delivered or out of reach."""
        error = self._tail.error()
        if not isinstance(error, TopicNotFound):
            raise error
        self._drop_fetch()
        self._feeds.tails.detach(self._tail, self.wake)
        if 0 < self._tail.ring.epoch < self.epoch:
            # it was the tail of an older topic of this name
            self._tail = self._feeds.tails.attach(self.topic, self.wake)
            return _MORE
        return self._say_deleted()

    def _say_deleted(self) -> Step:
        self.phase = Phase.GONE
        self._farewell = False
        return Step((topic_deleted_frame(Place(self.topic, self.epoch, self.seq)),))
