"""Following topics: one stream, many topics, each read by its cursor as credit allows.

A follower holds no queue of records, only a cursor a topic: whatever it has not taken is in the log. Topics at the head
come first; those that catch up take turns, at most 1 MiB each.

I1: events of one topic are ordered. I2: records are sent only while credit is above 0; an item takes its size, so credit may
go below 0 by one item. What has no records needs no credit. I3: a topic that cannot be followed ends alone. I4: what waits
to be taken is bounded: answers to `add` by `ANSWERS_MAX`, everything else by the topics followed. I5: what was read before
records were deleted comes before the change that tells of it.
Threading: event loop only; one task iterates, steps may come from others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import CursorAhead, EddylineError, InvalidArgument, TopicNotFound
from eddyline.core.model.read import READ_LIMIT_MAX
from eddyline.core.records.record import Gap
from eddyline.core.records.size import CREDIT_BYTES_MAX, item_bytes
from eddyline.core.store_link.protocol import FollowChanged, FollowEnded, FollowItem, FollowLevel, FollowStarted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.store_link.protocol import FollowEvent
    from eddyline.core.telemetry.trace_context import SeqTrace
    from eddyline.store.log.table import TopicTable
    from eddyline.store.log.topic import Topic
    from eddyline.store.read.log_reader import LogReader
    from eddyline.store.write.traces import RecentTraces

TURN_BYTES_MAX: Final = 1 << 20
FOLLOWED_TOPICS_MAX: Final = 100_000
ANSWERS_MAX: Final = 10_000
"""Answers to `add` that nobody has taken yet; the next `add` waits. About 5 MB, and more topics than a caller adds before it
begins to listen."""


class _Followed:
    """One topic of a stream. `turns` is the queue that it waits in, None where there is nothing to tell of it."""

    __slots__ = ("after_seq", "config_version", "delete_mark", "epoch", "follow_id", "level", "topic", "turns")

    def __init__(self, follow_id: int, topic: Topic, epoch: int, after_seq: int) -> None:
        self.follow_id = follow_id
        self.topic = topic
        self.epoch = epoch
        self.after_seq = after_seq
        self.level = False
        self.config_version = topic.config_version
        self.delete_mark = topic.delete_mark
        self.turns: _Turns | None = None

    @property
    def has_unread(self) -> bool:
        """True = a read would give records, or the gap of another epoch."""
        return self.epoch not in (0, self.topic.id) or self.after_seq < self.topic.head_seq

    @property
    def has_changed(self) -> bool:
        """True = its configuration is another one than was told, or records were deleted since."""
        return (self.config_version, self.delete_mark) != (self.topic.config_version, self.topic.delete_mark)

    def put_off(self) -> None:
        """Take it out of its queue."""
        if self.turns is not None:
            del self.turns[self]
            self.turns = None


_Turns = OrderedDict[_Followed, None]
"""A queue that any of its topics may leave at once."""


class LocalFollow:
    """One FollowTopics stream in the store; implements `eddyline.core.store_link.protocol.Follow`."""

    def __init__(self, table: TopicTable, reader: LogReader, traces: RecentTraces) -> None:
        self._table = table
        self._reader = reader
        self._traces = traces
        self._followed: dict[int, _Followed] = {}
        self._by_topic: dict[Topic, dict[int, _Followed]] = {}
        self._answers: deque[FollowEvent] = deque()
        self._tellable: _Turns = OrderedDict()
        self._live: _Turns = OrderedDict()
        self._behind: _Turns = OrderedDict()
        self._credit = 0
        self._closed = False
        self._wake = asyncio.Event()
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._followed)

    async def add(self, follow_id: int, topic: str, *, epoch: int = 0, after_seq: int | None = None) -> None:
        """Follow one more topic; see the Protocol. Waits while 10 000 answers are not taken.

        Raises:
            InvalidArgument: one stream follows too many.
        """
        while len(self._answers) >= ANSWERS_MAX and not self._closed:
            self._room.clear()
            await self._room.wait()
        if self._closed:
            return
        self._drop(follow_id)
        if len(self._followed) >= FOLLOWED_TOPICS_MAX:
            raise InvalidArgument(
                f"one stream follows at most {FOLLOWED_TOPICS_MAX} topics", field="add", topicsMax=FOLLOWED_TOPICS_MAX
            )
        try:
            found = self._table.get(topic)
            start = found.head_seq if after_seq is None else after_seq
            if start > found.head_seq and epoch in (0, found.id):
                raise CursorAhead(
                    f"the head of topic {topic} is {found.head_seq}, below the cursor {start}",
                    topic=topic,
                    headSeq=found.head_seq,
                    afterSeq=start,
                )
        except EddylineError as error:
            self._answer(FollowEnded(follow_id, error.reason, error.message))
            return
        followed = _Followed(follow_id, found, epoch, start)
        self._followed[follow_id] = followed
        if found not in self._by_topic:
            self._by_topic[found] = {}
            found.listen(self._moved)
        self._by_topic[found][follow_id] = followed
        self._answer(FollowStarted(follow_id, found.info(), start))
        self._queue(followed)

    async def remove(self, follow_id: int) -> None:
        """Stop following one topic."""
        self._drop(follow_id)

    async def grant(self, credit_bytes: int) -> None:
        """Add credit. Raises InvalidArgument where more than 64 MiB would be outstanding."""
        if self._credit + credit_bytes > CREDIT_BYTES_MAX:
            raise InvalidArgument(
                f"at most {CREDIT_BYTES_MAX} bytes of credit at once",
                field="credit_bytes",
                creditBytesMax=CREDIT_BYTES_MAX,
            )
        self._credit += credit_bytes
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[FollowEvent]:
        while True:
            if self._answers:
                self._room.set()
                yield self._answers.popleft()
                continue
            followed = self._next()
            if followed is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            for event in await self._turn(followed) if followed.has_unread else self._tell(followed):
                yield event

    def close(self) -> None:
        """Let go of every topic."""
        self._closed = True
        for topic in self._by_topic:
            topic.unlisten(self._moved)
        for kept in (self._by_topic, self._followed, self._tellable, self._live, self._behind):
            kept.clear()
        self._room.set()

    async def _turn(self, followed: _Followed) -> list[FollowEvent]:
        """Read what a topic has, at most a turn's bytes."""
        topic = followed.topic
        try:
            result = await self._reader.read(
                topic,
                after_seq=followed.after_seq,
                epoch=followed.epoch,
                limit=READ_LIMIT_MAX,
                max_bytes=TURN_BYTES_MAX,
            )
        except EddylineError as error:
            return self._end(followed, error)
        if not self._follows(followed):
            return []  # removed, or added anew, while this was read
        followed.epoch = topic.id
        told_seq = followed.after_seq
        followed.after_seq = result.next_after_seq
        events: list[FollowEvent] = []
        for number, item in enumerate(result.items, start=1):
            self._credit -= item_bytes(item)
            cursor = item.own_seq if isinstance(item, Gap) else item.last_seq
            traces: tuple[SeqTrace, ...] = ()
            if self._traces and not isinstance(item, Gap):
                traces = self._traces.within(topic.id, item.first_seq, item.last_seq)
            # what lies between the last item and the cursor was deleted
            whole = result.batch_end and number == len(result.items)
            events.append(FollowItem(followed.follow_id, item, cursor, result.head_seq, traces, whole))
            told_seq = cursor
        events += self._tell_change(followed)
        if told_seq < followed.after_seq:
            followed.level = False  # the newest records were deleted: that it is level tells how far
        self._queue(followed)
        return events

    def _tell(self, followed: _Followed) -> list[FollowEvent]:
        """What is to be said of a topic that has nothing unread."""
        topic = followed.topic
        events = self._tell_change(followed)
        if not followed.level:
            followed.level = True
            events.append(FollowLevel(followed.follow_id, topic.head_seq))
        if topic.deleted:
            events += self._end(followed, TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name))
        return events

    def _tell_change(self, followed: _Followed) -> list[FollowEvent]:
        if not followed.has_changed:
            return []
        followed.config_version, followed.delete_mark = followed.topic.config_version, followed.topic.delete_mark
        return [FollowChanged(followed.follow_id, followed.topic.info())]

    def _next(self) -> _Followed | None:
        """The topic whose turn it is: those that need no credit first, then live ones, then those behind."""
        for turns in (self._tellable, self._live, self._behind) if self._credit > 0 else (self._tellable,):
            if turns:
                followed, _ = turns.popitem(last=False)
                followed.turns = None
                return followed
        return None

    def _queue(self, followed: _Followed) -> None:
        """Let it wait where it belongs now; in the same queue it keeps its place."""
        turns: _Turns | None = None
        if followed.has_unread:
            turns = self._live if followed.level else self._behind
        elif not followed.level or followed.topic.deleted or followed.has_changed:
            turns = self._tellable
        if turns is not followed.turns:
            followed.put_off()
            if turns is not None:
                turns[followed] = None
                followed.turns = turns
        self._wake.set()

    def _moved(self, topic: Topic) -> None:
        for followed in self._by_topic.get(topic, {}).values():
            self._queue(followed)

    def _follows(self, followed: _Followed) -> bool:
        return self._followed.get(followed.follow_id) is followed

    def _end(self, followed: _Followed, error: EddylineError) -> list[FollowEvent]:
        if not self._follows(followed):
            return []
        self._drop(followed.follow_id)
        return [FollowEnded(followed.follow_id, error.reason, error.message)]

    def _drop(self, follow_id: int) -> None:
        followed = self._followed.pop(follow_id, None)
        if followed is None:
            return
        followed.put_off()
        others = self._by_topic[followed.topic]
        del others[follow_id]
        if not others:
            del self._by_topic[followed.topic]
            followed.topic.unlisten(self._moved)

    def _answer(self, event: FollowEvent) -> None:
        self._answers.append(event)
        self._wake.set()
