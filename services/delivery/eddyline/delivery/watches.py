"""Watches: how a stream opens. Where each topic starts, against the head it has at that moment.

A stream opens in the order: its topics are attached, so that their rings take what comes from now on; their heads are
asked for, which are the targets of caught_up; then each start is resolved. So there is no moment between the two in which
a record could be missed, and a record acknowledged before the call is below the target.
A topic that a token or a cursor with an epoch shows to have existed, and that is gone, is told as deleted in the stream;
any other missing topic refuses the stream.
Failure: a store that does not answer within a short try is `StoreUnreachable`; nothing is left behind.
Threading: event loop only.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, assert_never

from eddyline.core.clock import sleep, wait_event
from eddyline.core.cursor import Cursor, Resume, ResumeState, ResumeTokens, WatchedTopic
from eddyline.core.errors import (
    Code,
    CursorAhead,
    EddylineError,
    NotKv,
    QuotaWatches,
    StoreUnreachable,
    TopicNotFound,
)
from eddyline.core.topic import Kind, TopicInfo
from eddyline.delivery.encode import view_of
from eddyline.delivery.subscriber import Subscriber
from eddyline.delivery.subscription import Begin, Phase, Subscription

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from eddyline.core.clock import Clock
    from eddyline.delivery.figures import Figures
    from eddyline.delivery.subscription import Feeds

START_WAIT_S: Final = 5.0
"""Elsewhere none or 20 s. A store that restarts is back within a second or two, and noticed 3 s later at most; a client that
is refused after that knows more than one that hangs."""
RETRY_S: Final = 0.2
HEADS_AT_ONCE: Final = 16
"""Heads asked for at the same time by one stream: 1 000 topics take about 0.4 s."""

_AWAY: Final = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)


class Point(Enum):
    """Where a topic starts without a cursor."""

    TAIL = 1
    SNAPSHOT = 2
    EARLIEST = 3


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """One topic of a request: a cursor, or a point where there is none."""

    topic: str
    start: Cursor | Point
    key_prefixes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """A valid request: 1 to 1 000 topics, each named once."""

    topics: tuple[WantedTopic, ...]
    resume_token: bytes = b""
    columns: bool = False
    heartbeat_s: float = 10.0


class Watches:
    """All watch streams of a process."""

    def __init__(self, feeds: Feeds, *, clock: Clock, figures: Figures, watches_max: int) -> None:
        self._feeds = feeds
        self._clock = clock
        self._figures = figures
        self._watches_max = watches_max

    @asynccontextmanager
    async def open(self, request: WatchRequest) -> AsyncIterator[Subscriber]:
        """Open a stream; its end closes it.

        Raises:
            ResumeTokenInvalid, ResumeTokenMismatch, QuotaWatches, TopicNotFound, NotKv, CursorAhead, StoreUnreachable.
        """
        tokens = ResumeTokens(WatchedTopic(wanted.topic, wanted.key_prefixes) for wanted in request.topics)
        resumes = tokens.decode(request.resume_token) if request.resume_token else {}
        if self._figures.watch_count >= self._watches_max:
            raise QuotaWatches(
                f"this replica serves at most {self._watches_max} watch streams", limit=self._watches_max
            )
        self._figures.watch_count += 1
        subscriber = Subscriber(
            tokens=tokens,
            heartbeat_s=request.heartbeat_s,
            clock=self._clock,
            wheel=self._feeds.wheel,
            figures=self._figures,
        )
        try:
            await self._fill(subscriber, request, resumes)
            yield subscriber
        finally:
            subscriber.close()
            self._figures.watch_count -= 1

    async def _fill(self, subscriber: Subscriber, request: WatchRequest, resumes: dict[str, Resume]) -> None:
        deadline_s = self._clock.monotonic_s() + START_WAIT_S
        topics: list[Subscription] = []
        stale: list[Subscription] = []
        for wanted in request.topics:
            view = view_of(wanted.key_prefixes, columns=request.columns)
            topic = Subscription(wanted.topic, view, self._feeds, subscriber.mark)
            subscriber.add(topic)
            topics.append(topic)
            if topic.tail.settled.is_set():
                stale.append(topic)
        found = await self._ask(stale, deadline_s)
        for topic in topics:
            if topic.topic not in found:
                found[topic.topic] = await self._settled(topic, deadline_s)
        for wanted, topic in zip(request.topics, topics, strict=True):
            start = _start(wanted.start, resumes.get(wanted.topic))
            topic.begin(_begin(wanted.topic, start, found[wanted.topic]))

    async def _settled(self, topic: Subscription, deadline_s: float) -> TopicInfo | TopicNotFound:
        """A topic whose following began after the call came: the store said its head then."""
        tail = topic.tail
        if not await wait_event(self._clock, tail.settled, deadline_s - self._clock.monotonic_s()):
            raise StoreUnreachable("the store does not answer")
        if tail.info is not None:
            return tail.info
        error = tail.error()
        if isinstance(error, TopicNotFound):
            return error
        raise error

    async def _ask(self, topics: list[Subscription], deadline_s: float) -> dict[str, TopicInfo | TopicNotFound]:
        """Ask the store for the heads of topics that have been followed for a while, some at a time."""
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

        names = iter([topic.topic for topic in topics])
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(HEADS_AT_ONCE, len(topics))):
                tasks.create_task(ask(names))
        if failures:
            raise failures[0]
        return found

    async def _head(self, topic: str, deadline_s: float) -> TopicInfo | TopicNotFound:
        while True:
            try:
                return await self._feeds.link.get_topic(topic)
            except TopicNotFound as error:
                return error
            except EddylineError as error:
                if error.code not in _AWAY or self._clock.monotonic_s() + RETRY_S > deadline_s:
                    raise
            await sleep(self._clock, RETRY_S)


def _start(start: Cursor | Point, resume: Resume | None) -> Cursor | Resume | Point:
    """The token's place, unless the request has a newer cursor of the same epoch."""
    if resume is None or resume.state is ResumeState.START:
        return start
    if isinstance(start, Cursor) and start.epoch == resume.cursor.epoch:
        # a cursor at a snapshot's own point was given at its end: the snapshot is complete
        oldest = resume.cursor.seq + (0 if resume.state is ResumeState.SNAPSHOT and resume.cursor.seq else 1)
        if start.seq >= oldest:
            return start
    return resume.cursor if resume.state is ResumeState.LOG else resume


def _begin(topic: str, start: Cursor | Resume | Point, found: TopicInfo | TopicNotFound) -> Begin:
    """Where a subscription begins. Raises TopicNotFound, NotKv, CursorAhead."""
    if isinstance(found, TopicNotFound):
        known = start.cursor if isinstance(start, Resume) else start
        if isinstance(known, Cursor) and known.epoch:
            return Begin(Phase.GONE, known.epoch, known.seq, 0)
        raise found
    match start:
        case Cursor():
            return _at_cursor(start, found)
        case Resume() if found.kind is not Kind.KV:
            # made anew without fold: its whole log, after a gap
            return _at_cursor(start.cursor, found)
        case Resume() | Point.SNAPSHOT:
            if found.kind is not Kind.KV:
                raise NotKv(
                    f"topic {topic} has no fold, so no snapshot; start at a cursor, TAIL or EARLIEST", topic=topic
                )
            return Begin(Phase.SNAPSHOT, found.epoch, 0, found.head_seq)
        case Point.TAIL:
            return Begin(Phase.LOG, found.epoch, found.head_seq, found.head_seq)
        case Point.EARLIEST:
            return Begin(Phase.LOG, found.epoch, 0, found.head_seq)
        case _:
            assert_never(start)


def _at_cursor(cursor: Cursor, found: TopicInfo) -> Begin:
    if cursor.epoch not in (0, found.epoch):
        return Begin(Phase.LOG, found.epoch, 0, found.head_seq, old_epoch=cursor.epoch)
    if cursor.seq > found.head_seq:
        raise CursorAhead(
            f"the head of topic {found.name} is {found.head_seq}, below the cursor {cursor.seq}",
            topic=found.name,
            headSeq=found.head_seq,
            cursorSeq=cursor.seq,
        )
    return Begin(Phase.LOG, found.epoch, cursor.seq, found.head_seq)
