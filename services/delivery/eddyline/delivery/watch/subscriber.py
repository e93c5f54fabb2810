"""A subscriber: one watch stream, its topics in turn, and its signs of life.

Topics that have something new wait in a queue, each at most once, and take turns, one step each, so that a topic that
catches up does not hold the others back. Nothing is fetched while a frame is being sent: a subscriber that does not read
costs its positions and one frame.

I1: caught_up comes once, after everything up to the heads of the start was sent; progress, heartbeats and going_away only
between steps. So none ever overtakes a record, and every token says exactly what was sent.
I2: a token is due each heartbeat, however busy the stream is, so that a resume with a token alone repeats no more than a
heartbeat's time; and after each heartbeat a topic has its turn, so that a reader slower than its heartbeats gets on.
I3: a stream that is to leave says so once, behind the step under way, and ends.
I4: a topic that begins at its head is told where that is before anything else, by the token of the first frame: of caught_up
or, where other topics are behind, of a heartbeat. A stream that breaks before the next token would begin it at a later head.
Threading: event loop only; `frames` is iterated by one task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from eddyline.delivery.feed.encode import caught_up_frame, going_away_frame, heartbeat_frame
from eddyline.delivery.schedule.in_flight import ReaderSpeed
from eddyline.delivery.schedule.timer_wheel import TICK_S
from eddyline.delivery.watch.subscription import Phase

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from eddyline.core.runtime.clock import Clock
    from eddyline.delivery.feed.encode import Frame
    from eddyline.delivery.resume_token import ResumeTokens
    from eddyline.delivery.schedule.timer_wheel import ScheduledCall, TimerWheel
    from eddyline.delivery.stats import DeliveryStats
    from eddyline.delivery.watch.subscription import Subscription
    from eddyline.v1 import delivery_pb2 as pb


class Subscriber:
    """One watch stream; see the module."""

    def __init__(
        self,
        *,
        tokens: ResumeTokens,
        heartbeat_s: float,
        clock: Clock,
        wheel: TimerWheel,
        figures: DeliveryStats,
        number: int = 0,
        peer: str = "",
    ) -> None:
        self.number = number
        self.peer = peer
        self.opened_s = self.sent_s = clock.monotonic_s()
        """When it was opened, and when a frame was last given to its transport."""
        self.sent_count = self.sent_bytes = 0
        self._tokens = tokens
        # The wheel is up to a tick late, and the contract says: at most.
        self._heartbeat_s = heartbeat_s - TICK_S
        self._clock = clock
        self._wheel = wheel
        self._figures = figures
        self._topics: list[Subscription] = []
        self._behind: set[Subscription] = set()
        self._left = 0
        self._ready: deque[Subscription] = deque()
        self._wake = asyncio.Event()
        self._token_s = clock.monotonic_s()
        self._due = False
        self._queued_bytes = 0
        self._pace = ReaderSpeed()
        self._heartbeat: ScheduledCall | None = None
        self._leaving: ScheduledCall | None = None
        self._leave_s = 0.0
        self._caught_up = False
        self._over = False
        self._left_for: pb.GoingAwayReason.ValueType | None = None

    def add(self, subscription: Subscription) -> None:
        """Take a topic. All are added, and begun, before `frames`."""
        subscription.keep_pace(self._pace)
        self._topics.append(subscription)

    @property
    def topics(self) -> Sequence[Subscription]:
        """Its topics."""
        return self._topics

    @property
    def queued_bytes(self) -> int:
        """Of the frame that its transport has not taken yet."""
        return self._queued_bytes

    @property
    def slow(self) -> bool:
        """True = nobody waits for its reader."""
        return self._pace.slow

    @property
    def caught_up(self) -> bool:
        """True = it was told so."""
        return self._caught_up

    def mark(self, subscription: Subscription) -> None:
        """Queue a topic for a turn, unless it is queued."""
        if not subscription.queued:
            subscription.queued = True
            self._ready.append(subscription)
            self._wake.set()

    def leave_after(self, delay_s: float, reason: pb.GoingAwayReason.ValueType) -> None:
        """End the stream after a while, 0 = now, with going_away. The earlier of several holds."""
        if self._left_for is not None:
            return
        if delay_s <= 0:
            self._leave(reason)
            return
        earlier, due_s = self._leaving, self._clock.monotonic_s() + delay_s
        if earlier is not None:
            if self._leave_s <= due_s:
                return
            earlier.cancel()
        self._leave_s = due_s
        self._leaving = self._wheel.schedule(delay_s, lambda: self._leave(reason))

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """What the stream sends, until every topic is gone or the caller goes away. Raises what ends it."""
        self._begin()
        while True:
            self._count_queued(0)
            signs = self._control_frames()
            for frame in signs:
                yield self._sent(frame)
            if self._over:
                return
            if not self._ready:
                if signs:
                    continue  # they may have been long in sending, and the next heartbeat due meanwhile
                if self._left == 0:
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            topic = self._ready.popleft()
            topic.queued = False
            if topic.phase is Phase.GONE and topic.level:
                continue
            step = topic.step()
            for frame in step.frames:
                yield self._sent(frame)
            topic.sent()
            if step.more:
                self.mark(topic)
                if not step.frames:
                    await asyncio.sleep(0)  # all of it was hidden by the filter: others have their turn too
            self._settle(topic)

    def close(self) -> None:
        """Let go of every topic."""
        for deadline in (self._heartbeat, self._leaving):
            if deadline is not None:
                deadline.cancel()
        self._count_queued(0)
        for topic in self._topics:
            topic.close()

    def _begin(self) -> None:
        self._behind = {topic for topic in self._topics if not topic.level}
        self._token_s = self._clock.monotonic_s()
        if 0 < len(self._behind) < len(self._topics):
            self._due = True  # I4
        else:
            self._arm(self._heartbeat_s)
        self._left = len(self._topics)
        for topic in self._topics:
            self.mark(topic)

    def _leave(self, reason: pb.GoingAwayReason.ValueType) -> None:
        self._left_for = reason
        self._wake.set()

    def _control_frames(self) -> list[Frame]:
        """What is to be said between steps now. Nothing is given between these, so that one token holds for them."""
        signs: list[Frame] = []
        if not self._caught_up and not self._behind:
            self._caught_up = True
            signs.append(caught_up_frame(self._token()))
        if self._left_for is not None:
            self._over = True
            signs.append(going_away_frame(self._left_for, self._token()))
        elif self._due:
            self._due = False
            self._arm(self._heartbeat_s)
            told = (topic.progress() for topic in self._topics)
            signs += (frame for frame in told if frame is not None)
            signs.append(heartbeat_frame(self._clock.now_ms(), self._token()))
        return signs

    def _settle(self, topic: Subscription) -> None:
        if topic.level:
            self._behind.discard(topic)
        if topic.phase is Phase.GONE:
            self._left -= 1

    def _sent(self, frame: Frame) -> bytes:
        self.sent_s = self._clock.monotonic_s()
        self.sent_count += frame.records
        self.sent_bytes += len(frame.data)
        self._figures.delivered_count += frame.records
        self._figures.delivered_bytes += len(frame.data)
        self._count_queued(len(frame.data))
        return frame.data

    def _count_queued(self, nbytes: int) -> None:
        """So much of this stream is with its transport now."""
        self._figures.queued_bytes += nbytes - self._queued_bytes
        self._queued_bytes = nbytes

    def _arm(self, delay_s: float) -> None:
        self._heartbeat = self._wheel.schedule(delay_s, self._on_heartbeat_due)

    def _on_heartbeat_due(self) -> None:
        """Due, unless caught_up brought a token meanwhile: then due that much later."""
        remaining_s = self._token_s + self._heartbeat_s - self._clock.monotonic_s()
        if remaining_s > 0:
            self._arm(remaining_s)
        else:
            self._due = True
            self._wake.set()

    def _token(self) -> bytes:
        self._token_s = self._clock.monotonic_s()
        return self._tokens.encode({topic.topic: topic.resume for topic in self._topics})
