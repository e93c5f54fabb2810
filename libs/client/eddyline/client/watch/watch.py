"""A watch that never ends by itself: it reconnects, with full jitter, for as long as it is read.

Owns one WatchTopics call at a time; `eddyline.client.watch.plan` owns the place. Errors that another try cannot mend
(a wrong name, no fold, a cursor ahead of the log, corrupt data) are raised; everything else is a reason to reconnect.
A call that says nothing for three heartbeats is given up, so a role that hangs is left as one that died. A replica that
sends its streams elsewhere is left for the next one at once, without a callback.
Failures in a row are counted until the place moves: a heartbeat, a repeated `caught_up` and a snapshot that starts over
are signs of life, not progress. INTERNAL answers and refused tokens are tried `DEFECTS_MAX` times, with growing pauses.
`settle` has places for topics that begin at a time, at a revision or at their heads before anything comes of them, so
that `positions` has them too.
Threading: read by one task at a time. A read that is cancelled loses nothing: the next one resumes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

import grpc

from eddyline.client.transport.call import RETRY_CAP_S, domain_errors, retry_after_s
from eddyline.core.errors import (
    Code,
    Draining,
    EddylineError,
    NotReady,
    ResumeTokenInvalid,
    ResumeTokenMismatch,
    TopicNotFound,
)
from eddyline.core.runtime.backoff import Backoff
from eddyline.core.runtime.clock import sleep

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType

    from eddyline.client.watch.events import Position, TopicGone, WatchEvent
    from eddyline.client.watch.plan import WatchPlan
    from eddyline.core.runtime.clock import Clock
    from eddyline.v1 import delivery_pb2

    WatchCall = grpc.aio.UnaryStreamCall[delivery_pb2.WatchTopicsRequest, delivery_pb2.WatchTopicsResponse]
    OpenCall = Callable[[delivery_pb2.WatchTopicsRequest], WatchCall]
    Explain = Callable[[delivery_pb2.WatchTopicsRequest], Awaitable[Sequence[delivery_pb2.WatchCost]]]

HEARTBEAT_MS: Final = 5_000
HEARTBEAT_MS_UNSAID: Final = 10_000
"""The contract's meaning of 0."""
SILENCE_HEARTBEATS_MAX: Final = 3
DEFECTS_MAX: Final = 5
"""Tries after INTERNAL answers in a row, which a restart may mend and which would otherwise be repeated for ever."""
QUIET_S: Final = 600.0
"""A call that lived this long forgives the failures before it, though no place moved: its topics are quiet, and what
ends it is a new failure. Shorter, and a role that fails once a minute would be tried for ever."""

_MENDABLE: Final = frozenset({Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED})


class Watch:
    """An endless iterator of events; `async with` or `aclose` ends it."""

    def __init__(
        self,
        plan: WatchPlan,
        *,
        open_call: OpenCall,
        explain: Explain,
        clock: Clock,
        random_source: random.Random,
        before_retry: Callable[[], Awaitable[None]] | None = None,
        heartbeat_ms: int = HEARTBEAT_MS,
        on_retry: Callable[[EddylineError], None] | None = None,
        on_resume: Callable[[], None] | None = None,
    ) -> None:
        self._plan = plan
        self._open_call = open_call
        self._explain = explain
        self._before_retry = before_retry
        self._clock = clock
        self._backoff = Backoff(random_source, cap_s=RETRY_CAP_S)
        self._silence_s = SILENCE_HEARTBEATS_MAX * (heartbeat_ms or HEARTBEAT_MS_UNSAID) / 1000
        self._on_retry = on_retry
        self._on_resume = on_resume
        self._call: WatchCall | None = None
        self._silent = False
        self._closed = False
        self._defects = 0
        self._resuming = False
        self._opened_s: float | None = None
        self._progressed = False
        self.resume_count = 0
        """How often it went on after a break."""
        self.move_count = 0
        """How often a replica sent it to another one."""
        self.heard_s: float | None = None
        """When the newest frame came, heartbeats too, by the clock's `monotonic_s`; None = none came yet."""

        self.on_progress: Callable[[str, Position], None] | None = None
        """Hears of a topic's place that moved behind what the filters hide, between two events: nothing is to be
        read."""

    @property
    def positions(self) -> dict[str, Position]:
        """Per topic the place behind the newest event, to start another watch at."""
        return self._plan.positions

    async def settle(self) -> None:
        """Fix where topics begin that have no place yet, however long it takes; before the first event is read.

        `positions` has them from then on, but those that begin with a snapshot: they have theirs at its end.

        Raises:
            EddylineError: what another try cannot mend.
        """
        while (request := self._plan.unsettled()) is not None:
            try:
                if self._resuming and self._before_retry is not None:
                    await self._before_retry()
                self._plan.settle(await self._explain(request))
            except EddylineError as error:
                await self._recover(error)
            else:
                self._backoff.reset()
                self._defects = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        """The next event.

        Raises:
            EddylineError: what another try cannot mend.
        """
        while not (self._closed or self._plan.finished):
            try:
                frame = await self._next_frame()
            except EddylineError as error:
                if self._closed:
                    break
                gone = await self._recover(error)
                if gone is not None:
                    return gone
                continue
            if self._resuming:
                self._resuming = False
                self.resume_count += 1
                if self._on_resume is not None:
                    self._on_resume()
            self.heard_s = self._clock.monotonic_s()
            moves = self._plan.move_count
            try:
                event = self._plan.accept(frame)
            except EddylineError:
                # The next read gets the frame again.
                self._drop_call()
                raise
            if self._plan.move_count != moves:
                self._went_on()
            if frame.HasField("going_away"):
                await self._move()
                continue
            if event is not None:
                return event
            if frame.HasField("progress") and self.on_progress is not None:
                place = self._plan.position_of(frame.topic)
                if place is not None:
                    self.on_progress(frame.topic, place)
        self._drop_call()
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the call. Harmless when repeated."""
        self._closed = True
        self._drop_call()

    async def _next_frame(self) -> delivery_pb2.WatchTopicsResponse:
        if self._call is None:
            if self._resuming and self._before_retry is not None:
                await self._before_retry()
            self._call = self._open_call(self._plan.request())
            self._silent = False
            self._progressed = False
            self._opened_s = self._clock.monotonic_s()
        call = self._call
        timer = self._clock.call_later(self._silence_s, self._give_up)
        frame = None
        try:
            with domain_errors():
                frame = await call.read()
        except NotReady:
            if self._silent:
                raise NotReady(f"no message for {self._silence_s:g} s") from None
            raise
        finally:
            timer.cancel()
            if frame is None:
                # gRPC has cancelled the call with the read; the next read opens another from the same place.
                self._call = None
        if frame is grpc.aio.EOF:
            self._call = None
            raise NotReady("the watch was ended by the server")
        # grpc.aio types a read as message or the EOF mark, which the line above has taken out.
        return frame  # type: ignore[return-value]

    async def _recover(self, error: EddylineError) -> TopicGone | None:
        self._forgive()
        self._drop_call()
        if isinstance(error, TopicNotFound):
            gone = self._plan.drop(error.metadata.get("topic", "") or self._plan.sole_topic())
            if gone is None:
                raise error
            return gone
        if isinstance(error, ResumeTokenInvalid | ResumeTokenMismatch):
            # A replica that refuses its own tokens would have them dropped, given and refused for ever.
            if self._defects >= DEFECTS_MAX or not self._plan.drop_token():
                raise error
            self._defects += 1
        elif error.code is Code.INTERNAL and self._defects < DEFECTS_MAX:
            self._defects += 1
        elif error.code not in _MENDABLE:
            raise error
        if self._on_retry is not None and not self._resuming:
            self._on_retry(error)
        self._resuming = True
        # What a draining replica asks to wait is for itself; another one may be there now.
        at_least_s = 0.0 if isinstance(error, Draining) else retry_after_s(error)
        await sleep(self._clock, self._backoff.next_delay_s(minimum_s=at_least_s))
        return None

    async def _move(self) -> None:
        """Go on at the next replica, at once; after a wait where this one brought nothing else, lest it goes in
        circles."""
        self._forgive()
        self._drop_call()
        self.move_count += 1
        if not self._progressed:
            await sleep(self._clock, self._backoff.next_delay_s())

    def _went_on(self) -> None:
        self._progressed = True
        self._backoff.reset()
        self._defects = 0

    def _forgive(self) -> None:
        opened_s, self._opened_s = self._opened_s, None
        if opened_s is not None and self._clock.monotonic_s() - opened_s >= QUIET_S:
            self._went_on()

    def _give_up(self) -> None:
        self._silent = True
        self._drop_call()

    def _drop_call(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None
