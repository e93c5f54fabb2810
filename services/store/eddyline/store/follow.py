"""Following topics: one stream, many topics, each read by its cursor as credit allows.

A follower holds no queue of records, only a cursor a topic: whatever it has not taken is in the log. Topics at the head
come first; those that catch up take turns, at most 1 MiB each.

I1: events of one topic are ordered. I2: records are sent only while credit is above 0; an item takes its size, so credit may
go below 0 by one item. I3: a topic that cannot be followed ends alone.
Threading: event loop only; one task iterates, steps may come from others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import CursorAhead, EddylineError, InvalidArgument, TopicNotFound
from eddyline.core.follow_credit import CREDIT_BYTES_MAX, item_bytes
from eddyline.core.read import READ_LIMIT_MAX
from eddyline.core.record import Gap
from eddyline.core.store_link import FollowEnded, FollowItem, FollowLevel, FollowStarted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.store_link import FollowEvent
    from eddyline.store.log.table import TopicTable
    from eddyline.store.log.topic import Topic
    from eddyline.store.reader import LogReader

TURN_BYTES_MAX: Final = 1 << 20
FOLLOWED_TOPICS_MAX: Final = 100_000


class _Followed:
    """One topic of a stream."""

    __slots__ = ("after_seq", "epoch", "follow_id", "level", "queued", "topic")

    def __init__(self, follow_id: int, topic: Topic, epoch: int, after_seq: int) -> None:
        self.follow_id = follow_id
        self.topic = topic
        self.epoch = epoch
        self.after_seq = after_seq
        self.level = False
        self.queued = False


class LocalFollow:
    """One FollowTopics stream in the store; implements `eddyline.core.store_link.Follow`."""

    def __init__(self, table: TopicTable, reader: LogReader) -> None:
        self._table = table
        self._reader = reader
        self._followed: dict[int, _Followed] = {}
        self._by_topic: dict[int, list[_Followed]] = {}
        self._told: deque[FollowEvent] = deque()
        self._live: deque[_Followed] = deque()
        self._behind: deque[_Followed] = deque()
        self._credit = 0
        self._wake = asyncio.Event()

    async def add(self, follow_id: int, topic: str, *, epoch: int = 0, after_seq: int | None = None) -> None:
        """Follow one more topic; see the Protocol. Raises InvalidArgument where one stream follows too many."""
        await self.remove(follow_id)
        if len(self._followed) >= FOLLOWED_TOPICS_MAX:
            raise InvalidArgument(f"one stream follows at most {FOLLOWED_TOPICS_MAX} topics", field="add")
        try:
            found = self._table.get(topic)
            start = found.head_seq if after_seq is None else after_seq
            if start > found.head_seq and epoch in (0, found.id):
                raise CursorAhead(
                    f"the head of topic {topic} is {found.head_seq}, below the cursor {start}",
                    topic=topic,
                    headSeq=found.head_seq,
                )
        except EddylineError as error:
            self._tell(FollowEnded(follow_id, error.reason, error.message))
            return
        followed = _Followed(follow_id, found, epoch, start)
        self._followed[follow_id] = followed
        if found.id not in self._by_topic:
            self._by_topic[found.id] = []
            found.listen(self._moved)
        self._by_topic[found.id].append(followed)
        self._tell(FollowStarted(follow_id, found.info(), start))
        self._queue(followed)

    async def remove(self, follow_id: int) -> None:
        """Stop following one topic."""
        followed = self._followed.pop(follow_id, None)
        if followed is not None:
            self._unlisten(followed)

    async def grant(self, credit_bytes: int) -> None:
        """Add credit. Raises InvalidArgument where more than 64 MiB would be outstanding."""
        if self._credit + credit_bytes > CREDIT_BYTES_MAX:
            raise InvalidArgument(f"at most {CREDIT_BYTES_MAX} bytes of credit at once", field="credit_bytes")
        self._credit += credit_bytes
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[FollowEvent]:
        while True:
            while self._told:
                yield self._told.popleft()
            followed = self._next()
            if followed is None:
                self._wake.clear()
                if not self._told:
                    await self._wake.wait()
                continue
            for event in await self._turn(followed):
                yield event

    def close(self) -> None:
        """Let go of every topic."""
        for followed in self._followed.values():
            self._unlisten(followed)
        self._followed.clear()

    async def _turn(self, followed: _Followed) -> list[FollowEvent]:
        """Read what a topic has, at most a turn's bytes."""
        topic = followed.topic
        events: list[FollowEvent] = []
        try:
            result = await self._reader.read(
                topic,
                after_seq=followed.after_seq,
                epoch=followed.epoch,
                limit=READ_LIMIT_MAX,
                max_bytes=TURN_BYTES_MAX,
            )
        except EddylineError as error:
            self._end(followed, error)
            return events
        if self._followed.get(followed.follow_id) is not followed:
            return events  # removed, or added anew, while this was read
        followed.epoch = topic.id
        followed.after_seq = result.next_after_seq
        for item in result.items:
            self._credit -= item_bytes(item)
            cursor = max(item.seq, item.last_seq) if isinstance(item, Gap) else item.last_seq
            events.append(FollowItem(followed.follow_id, item, cursor, result.head_seq))
        if followed.after_seq < topic.head_seq:
            self._queue(followed)
        elif not followed.level:
            followed.level = True
            events.append(FollowLevel(followed.follow_id, topic.head_seq))
        if topic.deleted:
            self._end(followed, TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name))
        return events

    def _next(self) -> _Followed | None:
        """The topic whose turn it is, where credit is left: live ones first."""
        if self._credit <= 0:
            return None
        for queue in (self._live, self._behind):
            while queue:
                followed = queue.popleft()
                followed.queued = False
                if self._followed.get(followed.follow_id) is followed:
                    return followed
        return None

    def _queue(self, followed: _Followed) -> None:
        if not followed.queued:
            followed.queued = True
            (self._live if followed.level else self._behind).append(followed)
        self._wake.set()

    def _moved(self, topic: Topic) -> None:
        for followed in self._by_topic.get(topic.id, ()):
            self._queue(followed)

    def _end(self, followed: _Followed, error: EddylineError) -> None:
        if self._followed.get(followed.follow_id) is followed:
            del self._followed[followed.follow_id]
            self._unlisten(followed)
            self._tell(FollowEnded(followed.follow_id, error.reason, error.message))

    def _unlisten(self, followed: _Followed) -> None:
        others = self._by_topic[followed.topic.id]
        others.remove(followed)
        if not others:
            del self._by_topic[followed.topic.id]
            followed.topic.unlisten(self._moved)

    def _tell(self, event: FollowEvent) -> None:
        self._told.append(event)
        self._wake.set()
