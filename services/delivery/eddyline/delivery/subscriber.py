"""A subscriber: one watch stream, its topics in turn, and its signs of life.

Topics that have something new wait in a queue, each at most once, and take turns, one step each, so that a topic that
catches up does not hold the others back. Nothing is fetched while a frame is being sent: a subscriber that does not read
costs its positions and one frame.

I1: caught_up comes once, after everything up to the heads of the start was sent; heartbeats only between steps. So neither
ever overtakes a record, and every token says exactly what was sent.
I2: a token is due each heartbeat, however busy the stream is, so that a resume with a token alone repeats no more than a
heartbeat's time; and after each heartbeat a topic has its turn, so that a reader slower than its heartbeats gets on.
Threading: event loop only; `frames` is iterated by one task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from eddyline.core.cursor import Cursor, Resume, ResumeState
from eddyline.delivery.encode import caught_up_frame, heartbeat_frame
from eddyline.delivery.subscription import Phase
from eddyline.delivery.under_way import Pace
from eddyline.delivery.wheel import TICK_S

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from eddyline.core.clock import Clock
    from eddyline.core.cursor import ResumeTokens
    from eddyline.delivery.encode import Frame
    from eddyline.delivery.figures import Figures
    from eddyline.delivery.subscription import Subscription
    from eddyline.delivery.wheel import Deadline, Wheel


class Subscriber:
    """One watch stream; see the module."""

    def __init__(
        self, *, tokens: ResumeTokens, heartbeat_s: float, clock: Clock, wheel: Wheel, figures: Figures
    ) -> None:
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
        self._pace = Pace()
        self._heartbeat: Deadline | None = None

    def add(self, subscription: Subscription) -> None:
        """Take a topic. All are added, and begun, before `frames`."""
        subscription.keep_pace(self._pace)
        self._topics.append(subscription)

    def mark(self, subscription: Subscription) -> None:
        """Queue a topic for a turn, unless it is queued."""
        if not subscription.queued:
            subscription.queued = True
            self._ready.append(subscription)
            self._wake.set()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """What the stream sends, until every topic is gone or the caller goes away. Raises what ends it."""
        self._behind = {topic for topic in self._topics if not topic.level}
        self._token_s = self._clock.monotonic_s()
        self._arm(self._heartbeat_s)
        caught_up = False
        self._left = len(self._topics)
        for topic in self._topics:
            self.mark(topic)
        while True:
            self._count_queued(0)
            if not caught_up and not self._behind:
                caught_up = True
                yield self._sent(caught_up_frame(self._token()))
            if self._due:
                self._due = False
                self._arm(self._heartbeat_s)
                yield self._sent(heartbeat_frame(self._clock.now_ms(), self._token()))
                if not self._ready:
                    continue  # it may have been long in sending, and the next one due meanwhile
            if not self._ready:
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
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._count_queued(0)
        for topic in self._topics:
            topic.close()

    def _settle(self, topic: Subscription) -> None:
        if topic.level:
            self._behind.discard(topic)
        if topic.phase is Phase.GONE:
            self._left -= 1

    def _sent(self, frame: Frame) -> bytes:
        self._figures.delivered_count += frame.records
        self._figures.delivered_bytes += len(frame.data)
        self._count_queued(len(frame.data))
        return frame.data

    def _count_queued(self, nbytes: int) -> None:
        """So much of this stream is with its transport now."""
        self._figures.queued_bytes += nbytes - self._queued_bytes
        self._queued_bytes = nbytes

    def _arm(self, delay_s: float) -> None:
        self._heartbeat = self._wheel.schedule(delay_s, self._beat)

    def _beat(self) -> None:
        """Due, unless caught_up brought a token meanwhile: then due that much later."""
        remaining_s = self._token_s + self._heartbeat_s - self._clock.monotonic_s()
        if remaining_s > 0:
            self._arm(remaining_s)
        else:
            self._due = True
            self._wake.set()

    def _token(self) -> bytes:
        self._token_s = self._clock.monotonic_s()
        return self._tokens.encode({topic.topic: _resume(topic) for topic in self._topics})


def _resume(topic: Subscription) -> Resume:
    state = ResumeState.SNAPSHOT if topic.phase is Phase.SNAPSHOT else ResumeState.LOG
    return Resume(Cursor(topic.topic, topic.epoch, topic.seq), state)
