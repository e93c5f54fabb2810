"""Watches: opens streams, and ends all of them. Resolves each topic's start against its head at that moment.

A stream opens in this order: its topics are attached, so that their rings receive records from now on; their heads,
which are the targets of caught_up, are read; then each start is resolved (`start_positions.py`). So no record can be
missed between the two, and a record acknowledged before the call is below the target. All topics start, or the stream
fails with the error of one that cannot. The answer about a head also shows whether records were deleted of which the
ring does not know: no subscriber gets a record that was deleted before its call.
A stream that has reached its maximum age, and each one when the replica drains, is sent going_away with a token.
Failure: a store that does not answer within a short time is `StoreUnreachable`; the stream leaves no state.
Threading: event loop only.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import Code, Draining, EddylineError, QuotaWatches, StoreUnreachable, TopicNotFound
from eddyline.core.runtime.clock import sleep, wait_event
from eddyline.delivery.feed.encode import view_of
from eddyline.delivery.fetch.heads import HeadCache
from eddyline.delivery.resume_token import Resume, ResumeTokens
from eddyline.delivery.watch.request import TopicRequest, WatchRequest
from eddyline.delivery.watch.start_positions import StartResolver
from eddyline.delivery.watch.subscriber import Subscriber, no_backlog
from eddyline.delivery.watch.subscription import Subscription
from eddyline.v1 import delivery_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from eddyline.core.model.topic import TopicInfo
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.server.wire import Backlog
    from eddyline.delivery.feed.encode import TopicView
    from eddyline.delivery.stats import DeliveryStats
    from eddyline.delivery.watch.subscription import StartPosition, SubscriptionDeps


START_WAIT_S: Final = 5.0
"""Default in gRPC: no deadline for a call, 20 s for a connection.

A store that restarts is back within a second or two, and noticed 3 s later at most; a client with an error after that
time can react, one that hangs cannot.
"""
RETRY_S: Final = 0.2
HEADS_AT_ONCE: Final = 16
"""Heads read, and starts resolved, at the same time by one stream: 1 000 topics take about 0.4 s."""
AGE_JITTER: Final = 0.1
"""A stream's maximum age varies by this share, so that streams that began together do not all end together."""
LEAVES_A_SECOND: Final = 2_000
"""Rate at which a draining replica ends its streams: another replica opens as many in a second."""
DRAINING_RETRY_MS: Final = 1_000
"""Time until a replica may be available at the same address: a restart takes about a second."""
FULL_RETRY_MS: Final = 1_000

_AWAY: Final = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)


class Watches:
    """All watch streams of a process. `watches_max` 0 = no bound; `age_s_max` 0 = no maximum age."""

    def __init__(
        self, deps: SubscriptionDeps, *, clock: Clock, stats: DeliveryStats, watches_max: int, age_s_max: float = 0.0
    ) -> None:
        self._deps = deps
        self._clock = clock
        self._stats = stats
        self._watches_max = watches_max
        self._age_s_max = age_s_max
        self._starts = StartResolver(deps.link)
        self._heads = HeadCache(deps.link)
        self._open: dict[Subscriber, None] = {}
        self._number = 0
        self._drained = asyncio.Event()

    @asynccontextmanager
    async def open(
        self,
        request: WatchRequest,
        *,
        peer: str = "",
        backlog: Callable[[], Backlog | None] = no_backlog,
        call: object | None = None,
    ) -> AsyncIterator[Subscriber]:
        """Open a stream of the client at `peer`; leaving the context closes it.

        `backlog` returns what it has not taken; `call` = its call, for frames that are sent to many at once.

        Raises:
            ResumeTokenInvalid, ResumeTokenMismatch, QuotaWatches, Draining, TopicNotFound, NotKv, CursorAhead,
                StoreUnreachable.
        """
        tokens = ResumeTokens(wanted.signature() for wanted in request.topics)
        resumes = tokens.decode(request.resume_token) if request.resume_token else {}
        if self._stats.draining:
            raise Draining("this replica is shutting down; use another one", retryAfterMs=DRAINING_RETRY_MS)
        if self._watches_max and self._stats.watch_count >= self._watches_max:
            raise QuotaWatches(
                f"this replica serves at most {self._watches_max} watch streams",
                limit=self._watches_max,
                retryAfterMs=FULL_RETRY_MS,
            )
        self._stats.watch_count += 1
        self._number += 1
        subscriber = Subscriber(
            tokens=tokens,
            heartbeat_s=request.heartbeat_s,
            clock=self._clock,
            wheel=self._deps.wheel,
            stats=self._stats,
            number=self._number,
            peer=peer,
            backlog=backlog,
            call=call,
        )
        self._open[subscriber] = None
        if self._age_s_max:
            age_s = self._age_s_max * self._deps.random.uniform(1 - AGE_JITTER, 1 + AGE_JITTER)
            subscriber.leave_after(age_s, pb.GOING_AWAY_REASON_AGE)
        try:
            await self._attach_topics(subscriber, request, resumes)
            yield subscriber
        finally:
            subscriber.close()
            self._stats.watch_count -= 1
            del self._open[subscriber]
            if self._stats.draining and not self._open:
                self._drained.set()

    @property
    def opened(self) -> Iterable[Subscriber]:
        """The open streams, by number."""
        return self._open

    async def plan(self, request: WatchRequest) -> list[tuple[StartPosition, TopicInfo | TopicNotFound]]:
        """Return the start position and the state of each topic of a stream, without opening it.

        Raises:
            As `open`, but QuotaWatches and Draining.
        """
        tokens = ResumeTokens(wanted.signature() for wanted in request.topics)
        resumes = tokens.decode(request.resume_token) if request.resume_token else {}
        infos = await self._fetch_heads(
            [wanted.topic for wanted in request.topics], self._clock.monotonic_s() + START_WAIT_S
        )
        starts = await self._starts.resolve(request, resumes, infos)
        return [(start, infos[wanted.topic]) for start, wanted in zip(starts, request.topics, strict=True)]

    async def drain(self, grace_s: float) -> bool:
        """Refuse new streams, end the open ones with going_away, and wait until they have ended, at most `grace_s`.

        They leave spread over time, up to half of the grace. False = some did not end in time.
        """
        self._stats.draining = True
        spread_s = min(len(self._open) / LEAVES_A_SECOND, grace_s / 2)
        for subscriber in self._open:
            subscriber.leave_after(self._deps.random.uniform(0.0, spread_s), pb.GOING_AWAY_REASON_DRAINING)
        if not self._open:
            return True
        return await wait_event(self._clock, self._drained, grace_s)

    async def _attach_topics(self, subscriber: Subscriber, request: WatchRequest, resumes: dict[str, Resume]) -> None:
        deadline_s = self._clock.monotonic_s() + START_WAIT_S
        topics: list[Subscription] = []
        stale: list[str] = []
        for wanted in request.topics:
            view = _view(wanted, request)
            topic = Subscription(wanted.topic, view, self._deps, subscriber.wake, limit=request.limit)
            subscriber.add(topic)
            topics.append(topic)
            if topic.was_followed:
                stale.append(topic.topic)
        infos = await self._fetch_heads(stale, deadline_s)
        for topic in topics:
            if topic.topic not in infos:
                infos[topic.topic] = await self._followed_info(topic, deadline_s)
        starts = await self._starts.resolve(request, resumes, infos)
        for wanted, topic, start in zip(request.topics, topics, starts, strict=True):
            info = infos[wanted.topic]
            excludes = isinstance(info, TopicNotFound) or info.config.dedupe_node
            mark = 0 if isinstance(info, TopicNotFound) else info.delete_mark
            topic.begin(start, _view(wanted, request, excludes=excludes), delete_mark=mark)

    async def _followed_info(self, topic: Subscription, deadline_s: float) -> TopicInfo | TopicNotFound:
        """Return the state of a topic that was not followed before the call, from the start of its follow."""
        tail = topic.tail
        if not await wait_event(self._clock, tail.resolved, deadline_s - self._clock.monotonic_s()):
            raise StoreUnreachable("the store does not answer")
        if tail.info is not None:
            return tail.info
        error = tail.error()
        if isinstance(error, TopicNotFound):
            return error
        raise error

    async def _fetch_heads(self, topics: list[str], deadline_s: float) -> dict[str, TopicInfo | TopicNotFound]:
        """Read the heads of topics from the store, some at a time."""
        infos: dict[str, TopicInfo | TopicNotFound] = {}
        failures: list[EddylineError] = []

        async def look_up(names: Iterator[str]) -> None:
            for name in names:
                try:
                    infos[name] = await self._head(name, deadline_s)
                except EddylineError as error:
                    failures.append(error)
                if failures:
                    return

        names = iter(topics)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(HEADS_AT_ONCE, len(topics))):
                tasks.create_task(look_up(names))
        if failures:
            raise failures[0]
        return infos

    async def _head(self, topic: str, deadline_s: float) -> TopicInfo | TopicNotFound:
        while True:
            try:
                return await self._heads.request(topic)
            except EddylineError as error:
                if error.code not in _AWAY or self._clock.monotonic_s() + RETRY_S > deadline_s:
                    raise
            await sleep(self._clock, RETRY_S)


def _view(wanted: TopicRequest, request: WatchRequest, *, excludes: bool = True) -> TopicView:
    """Return the view of a topic in a stream. `excludes` False = the topic does not hide records by node."""
    return view_of(
        wanted.key_prefixes,
        columns=request.columns,
        tags=wanted.tags,
        exclude_nodes=wanted.exclude_nodes if excludes else (),
        ignore_deletes=wanted.ignore_deletes,
        metadata_only=wanted.metadata_only,
    )
