"""Subscriber: one watch stream, which gives its topics turns and sends control frames.

Topics with new frames wait in a queue, each at most once, and take turns, one step each, so that a topic that catches
up does not delay the others. No read is started while a frame is being sent: a subscriber that does not read costs its
positions and one frame.

I1: caught_up is sent once, after all records up to the heads of the start; progress, heartbeats and going_away only
    between steps. So none ever overtakes a record, and every token describes exactly the sent frames.
I2: a token is due each heartbeat, however busy the stream is, so that a resume with a token alone repeats at most a
    heartbeat's time; and after each heartbeat a topic has its turn, so that a reader slower than its heartbeats makes
    progress.
I3: a stream that is to leave sends going_away once, after the running step, and ends.
I4: a topic that begins at its head gets that position in the token of the first frame, before any other: of caught_up
    or, if other topics are behind, of a heartbeat. Without it a stream that breaks before the next token would begin at
    a later head.
Threading: event loop only; one task iterates `frames`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from eddyline.delivery.feed.encode import caught_up_frame, going_away_frame, heartbeat_frame
from eddyline.delivery.schedule.in_flight import WatchReader
from eddyline.delivery.schedule.timer_wheel import TICK_S
from eddyline.delivery.watch.subscription import SubscriptionPhase

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from eddyline.core.runtime.clock import Clock
    from eddyline.core.server.wire import Backlog
    from eddyline.delivery.feed.encode import EncodedFrame
    from eddyline.delivery.resume_token import ResumeTokens
    from eddyline.delivery.schedule.timer_wheel import ScheduledCall, TimerWheel
    from eddyline.delivery.stats import DeliveryStats
    from eddyline.delivery.watch.subscription import Subscription
    from eddyline.v1 import delivery_pb2 as pb


def no_backlog() -> None:
    """Return that what a reader has not taken is not visible."""


class Subscriber:
    """One watch stream."""

    def __init__(
        self,
        *,
        tokens: ResumeTokens,
        heartbeat_s: float,
        clock: Clock,
        wheel: TimerWheel,
        stats: DeliveryStats,
        number: int = 0,
        peer: str = "",
        backlog: Callable[[], Backlog | None] = no_backlog,
        call: object | None = None,
    ) -> None:
        """`call` = its call, for frames that are sent to many at once; None = every frame goes through `frames`."""
        self.number = number
        self.peer = peer
        self.backlog = backlog
        """Returns what its reader has not taken; None = not visible."""
        self.opened_s = clock.monotonic_s()
        self.reader = WatchReader(call=call, now_s=self.opened_s)
        self._tokens = tokens
        # The timer wheel is up to a tick late, and the contract's interval is a maximum.
        self._heartbeat_s = heartbeat_s - TICK_S
        self._clock = clock
        self._wheel = wheel
        self._stats = stats
        self._topics: list[Subscription] = []
        self._behind: set[Subscription] = set()
        self._live_count = 0
        self._ready: deque[Subscription] = deque()
        self._wake = asyncio.Event()
        self._token_s = clock.monotonic_s()
        self._is_heartbeat_due = False
        self._queued_bytes = 0
        self._heartbeat: ScheduledCall | None = None
        self._leaving: ScheduledCall | None = None
        self._leave_s = 0.0
        self._caught_up = False
        self._is_ending = False
        self._leave_reason: pb.GoingAwayReason.ValueType | None = None

    def add(self, subscription: Subscription) -> None:
        """Add a topic. All are added, and begun, before `frames`."""
        subscription.use_reader(self.reader)
        self._topics.append(subscription)

    @property
    def topics(self) -> Sequence[Subscription]:
        """Its subscriptions, in the order of the request."""
        return self._topics

    @property
    def queued_bytes(self) -> int:
        """Bytes of the frame that its transport has not accepted yet."""
        return self._queued_bytes

    @property
    def caught_up(self) -> bool:
        """True = caught_up was sent."""
        return self._caught_up

    def wake(self, subscription: Subscription) -> None:
        """Queue a topic for a turn, unless it is queued."""
        if not subscription.queued:
            subscription.queued = True
            self._ready.append(subscription)
            self._rouse()

    def leave_after(self, delay_s: float, reason: pb.GoingAwayReason.ValueType) -> None:
        """End the stream with going_away after a delay, 0 = now. Of several calls the earliest applies."""
        if self._leave_reason is not None:
            return
        if delay_s <= 0:
            self._leave(reason)
            return
        pending, due_s = self._leaving, self._clock.monotonic_s() + delay_s
        if pending is not None:
            if self._leave_s <= due_s:
                return
            pending.cancel()
        self._leave_s = due_s
        self._leaving = self._wheel.schedule(delay_s, lambda: self._leave(reason))

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield the stream's frames until every topic is deleted or the caller leaves. Raises the error that ends it."""
        self._begin()
        while True:
            self._count_queued(0)
            control_frames = self._control_frames()
            for frame in control_frames:
                yield self._sent(frame)
            if self._is_ending:
                return
            if not self._ready:
                if control_frames:
                    continue  # sending them may have taken long, and the next heartbeat may be due
                if self._live_count == 0:
                    return
                self._wake.clear()
                self.reader.is_idle = self._caught_up and self.reader.call is not None
                await self._wake.wait()
                continue
            topic = self._ready.popleft()
            topic.queued = False
            if topic.phase is SubscriptionPhase.GONE and topic.caught_up:
                continue
            step = topic.step()
            for frame in step.frames:
                yield self._sent(frame)
            topic.on_sent()
            if step.more:
                self.wake(topic)
                if not step.frames:
                    await asyncio.sleep(0)  # the filter hid all of it: other tasks have their turn too
            self._note_progress(topic)

    def close(self) -> None:
        """Close every topic, and cancel the timers."""
        self.reader.is_idle = False
        for deadline in (self._heartbeat, self._leaving):
            if deadline is not None:
                deadline.cancel()
        self._count_queued(0)
        for topic in self._topics:
            topic.close()

    def _begin(self) -> None:
        self._behind = {topic for topic in self._topics if not topic.caught_up}
        self._token_s = self._clock.monotonic_s()
        if 0 < len(self._behind) < len(self._topics):
            self._is_heartbeat_due = True  # I4
        else:
            self._arm(self._heartbeat_s)
        self._live_count = len(self._topics)
        for topic in self._topics:
            self.wake(topic)

    def _leave(self, reason: pb.GoingAwayReason.ValueType) -> None:
        self._leave_reason = reason
        self._rouse()

    def _rouse(self) -> None:
        """Let the stream's task go on: it has something to send."""
        self.reader.is_idle = False
        self._wake.set()

    def _control_frames(self) -> list[EncodedFrame]:
        """Return the control frames that are due between steps. All contain the same token, as no record is between them."""
        frames: list[EncodedFrame] = []
        if not self._caught_up and not self._behind:
            self._caught_up = True
            frames.append(caught_up_frame(self._token()))
        if self._leave_reason is not None:
            self._is_ending = True
            frames.append(going_away_frame(self._leave_reason, self._token()))
        elif self._is_heartbeat_due:
            self._is_heartbeat_due = False
            self._arm(self._heartbeat_s)
            progress_frames = (topic.progress() for topic in self._topics)
            frames += (frame for frame in progress_frames if frame is not None)
            frames.append(heartbeat_frame(self._clock.now_ms(), self._token()))
        return frames

    def _note_progress(self, topic: Subscription) -> None:
        if topic.caught_up:
            self._behind.discard(topic)
        if topic.phase is SubscriptionPhase.GONE:
            self._live_count -= 1

    def _sent(self, frame: EncodedFrame) -> bytes:
        reader = self.reader
        reader.sent_s = self._clock.monotonic_s()
        reader.sent_count += frame.records
        reader.sent_bytes += len(frame.data)
        self._stats.delivered_count += frame.records
        self._stats.delivered_bytes += len(frame.data)
        self._count_queued(len(frame.data))
        return frame.data

    def _count_queued(self, nbytes: int) -> None:
        """Count the bytes of this stream that are with its transport now."""
        self._stats.queued_bytes += nbytes - self._queued_bytes
        self._queued_bytes = nbytes

    def _arm(self, delay_s: float) -> None:
        self._heartbeat = self._wheel.schedule(delay_s, self._on_heartbeat_due)

    def _on_heartbeat_due(self) -> None:
        """Handle the heartbeat's deadline; if caught_up has sent a token meanwhile, move it by that much."""
        remaining_s = self._token_s + self._heartbeat_s - self._clock.monotonic_s()
        if remaining_s > 0:
            self._arm(remaining_s)
        else:
            self._is_heartbeat_due = True
            self._rouse()

    def _token(self) -> bytes:
        self._token_s = self._clock.monotonic_s()
        return self._tokens.encode({topic.topic: topic.resume for topic in self._topics})
