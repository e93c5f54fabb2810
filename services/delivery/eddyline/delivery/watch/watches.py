"""Watches: how a stream opens and how all of them end. Where each topic starts, against the head it has at that moment.

A stream opens in the order: its topics are attached, so that their rings take what comes from now on; their heads are
asked for, which are the targets of caught_up; then each start is resolved (`starts.py`). So there is no moment between the
two in which a record could be missed, and a record acknowledged before the call is below the target. All topics start, or
the stream is refused with the error of one that cannot. The answer about a head also says whether anything was deleted of
which the ring has not heard: what was deleted before the call is shown to nobody.
A stream that has become too old, and each one when the replica drains, is told to go on elsewhere, by a token.
Failure: a store that does not answer within a short try is `StoreUnreachable`; nothing is left behind.
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
from eddyline.delivery.watch.request import Point, TopicRequest, WatchRequest
from eddyline.delivery.watch.start_positions import StartResolver
from eddyline.delivery.watch.subscriber import Subscriber
from eddyline.delivery.watch.subscription import Subscription
from eddyline.v1 import delivery_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from eddyline.core.model.topic import TopicInfo
    from eddyline.core.runtime.clock import Clock
    from eddyline.delivery.feed.encode import View
    from eddyline.delivery.stats import DeliveryStats
    from eddyline.delivery.watch.subscription import StartPosition, SubscriptionDeps

__all__ = ["Point", "TopicRequest", "WatchRequest", "Watches"]

START_WAIT_S: Final = 5.0
"""Elsewhere none or 20 s. A store that restarts is back within a second or two, and noticed 3 s later at most; a client that
is refused after that knows more than one that hangs."""
RETRY_S: Final = 0.2
HEADS_AT_ONCE: Final = 16
"""Heads asked for, and starts looked up, at the same time by one stream: 1 000 topics take about 0.4 s."""
AGE_JITTER: Final = 0.1
"""A stream's age is its bound by so much more or less: streams that began together do not all end together."""
LEAVES_A_SECOND: Final = 2_000
"""How fast a draining replica sends its streams away: what another one of it opens in a second."""
DRAINING_RETRY_MS: Final = 1_000
"""When there may be a replica again at the same address: a restart takes about a second."""
FULL_RETRY_MS: Final = 1_000

_AWAY: Final = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)


class Watches:
    """All watch streams of a process. `watches_max` 0 = no bound; `age_s_max` 0 = they become as old as they like."""

    def __init__(
        self, feeds: SubscriptionDeps, *, clock: Clock, figures: DeliveryStats, watches_max: int, age_s_max: float = 0.0
    ) -> None:
        self._feeds = feeds
        self._clock = clock
        self._figures = figures
        self._watches_max = watches_max
        self._age_s_max = age_s_max
        self._starts = StartResolver(feeds.link)
        self._heads = HeadCache(feeds.link)
        self._open: dict[Subscriber, None] = {}
        self._number = 0
        self._drained = asyncio.Event()

    @asynccontextmanager
    async def open(self, request: WatchRequest, *, peer: str = "") -> AsyncIterator[Subscriber]:
        """Open a stream of the client at `peer`; its end closes it.

        Raises:
            ResumeTokenInvalid, ResumeTokenMismatch, QuotaWatches, Draining, TopicNotFound, NotKv, CursorAhead,
            StoreUnreachable.
        """
        tokens = ResumeTokens(wanted.watched() for wanted in request.topics)
        resumes = tokens.decode(request.resume_token) if request.resume_token else {}
        if self._figures.draining:
            raise Draining("this replica is going away; ask another", retryAfterMs=DRAINING_RETRY_MS)
        if self._watches_max and self._figures.watch_count >= self._watches_max:
            raise QuotaWatches(
                f"this replica serves at most {self._watches_max} watch streams",
                limit=self._watches_max,
                retryAfterMs=FULL_RETRY_MS,
            )
        self._figures.watch_count += 1
        self._number += 1
        subscriber = Subscriber(
            tokens=tokens,
            heartbeat_s=request.heartbeat_s,
            clock=self._clock,
            wheel=self._feeds.wheel,
            figures=self._figures,
            number=self._number,
            peer=peer,
        )
        self._open[subscriber] = None
        if self._age_s_max:
            age_s = self._age_s_max * self._feeds.random.uniform(1 - AGE_JITTER, 1 + AGE_JITTER)
            subscriber.leave_after(age_s, pb.GOING_AWAY_REASON_AGE)
        try:
            await self._fill(subscriber, request, resumes)
            yield subscriber
        finally:
            subscriber.close()
            self._figures.watch_count -= 1
            del self._open[subscriber]
            if self._figures.draining and not self._open:
                self._drained.set()

    @property
    def opened(self) -> Iterable[Subscriber]:
        """The open streams, by number."""
        return self._open

    async def plan(self, request: WatchRequest) -> list[tuple[StartPosition, TopicInfo | TopicNotFound]]:
        """Where each topic of a stream would begin, and what it is now. Nothing is opened.

        Raises:
            As `open`, but QuotaWatches and Draining.
        """
        tokens = ResumeTokens(wanted.watched() for wanted in request.topics)
        resumes = tokens.decode(request.resume_token) if request.resume_token else {}
        found = await self._ask([wanted.topic for wanted in request.topics], self._clock.monotonic_s() + START_WAIT_S)
        begins = await self._starts.resolve(request, resumes, found)
        return [(begin, found[wanted.topic]) for begin, wanted in zip(begins, request.topics, strict=True)]

    async def drain(self, grace_s: float) -> bool:
        """Refuse new streams, send those that are open elsewhere, and wait until they have ended, at most `grace_s`.

        The more there are the longer it takes, up to half of the grace. False = some did not end in time.
        """
        self._figures.draining = True
        spread_s = min(len(self._open) / LEAVES_A_SECOND, grace_s / 2)
        for subscriber in self._open:
            subscriber.leave_after(self._feeds.random.uniform(0.0, spread_s), pb.GOING_AWAY_REASON_DRAINING)
        if not self._open:
            return True
        return await wait_event(self._clock, self._drained, grace_s)

    async def _fill(self, subscriber: Subscriber, request: WatchRequest, resumes: dict[str, Resume]) -> None:
        deadline_s = self._clock.monotonic_s() + START_WAIT_S
        topics: list[Subscription] = []
        stale: list[str] = []
        for wanted in request.topics:
            view = _view(wanted, request)
            topic = Subscription(wanted.topic, view, self._feeds, subscriber.mark, room=request.room)
            subscriber.add(topic)
            topics.append(topic)
            if topic.was_followed:
                stale.append(topic.topic)
        found = await self._ask(stale, deadline_s)
        for topic in topics:
            if topic.topic not in found:
                found[topic.topic] = await self._settled(topic, deadline_s)
        begins = await self._starts.resolve(request, resumes, found)
        for wanted, topic, begin in zip(request.topics, topics, begins, strict=True):
            info = found[wanted.topic]
            excludes = isinstance(info, TopicNotFound) or info.config.dedupe_node
            mark = 0 if isinstance(info, TopicNotFound) else info.delete_mark
            topic.begin(begin, _view(wanted, request, excludes=excludes), delete_mark=mark)

    async def _settled(self, topic: Subscription, deadline_s: float) -> TopicInfo | TopicNotFound:
        """A topic that nobody had asked the store to follow when the call came: it said its head after that."""
        tail = topic.tail
        if not await wait_event(self._clock, tail.settled, deadline_s - self._clock.monotonic_s()):
            raise StoreUnreachable("the store does not answer")
        if tail.info is not None:
            return tail.info
        error = tail.error()
        if isinstance(error, TopicNotFound):
            return error
        raise error

    async def _ask(self, topics: list[str], deadline_s: float) -> dict[str, TopicInfo | TopicNotFound]:
        """Ask the store for the heads of topics, some at a time."""
        found: dict[str, TopicInfo | TopicNotFound] = {}
        failures: list[EddylineError] = []

        async def ask(names: Iterator[str]) -> None:
            for name in names:
                try:
                    found[name] = await self._head(name, deadline_s)
                except EddylineError as error:
                    failures.append(error)
                if failures:
                    return

        names = iter(topics)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(HEADS_AT_ONCE, len(topics))):
                tasks.create_task(ask(names))
        if failures:
            raise failures[0]
        return found

    async def _head(self, topic: str, deadline_s: float) -> TopicInfo | TopicNotFound:
        while True:
            try:
                return await self._heads.ask(topic)
            except EddylineError as error:
                if error.code not in _AWAY or self._clock.monotonic_s() + RETRY_S > deadline_s:
                    raise
            await sleep(self._clock, RETRY_S)


def _view(wanted: TopicRequest, request: WatchRequest, *, excludes: bool = True) -> View:
    """What a stream shows of a topic. `excludes` False = the topic does not hide what nodes wrote."""
    return view_of(
        wanted.key_prefixes,
        columns=request.columns,
        tags=wanted.tags,
        exclude_nodes=wanted.exclude_nodes if excludes else (),
        ignore_deletes=wanted.ignore_deletes,
        metadata_only=wanted.metadata_only,
    )
