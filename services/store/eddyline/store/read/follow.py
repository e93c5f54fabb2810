"""FollowTopics in the store: one stream follows many topics, each by its own cursor, as far as credit allows.

A stream queues no records, only one cursor a topic: records not yet sent stay in the log. Topics at the head are served
first; topics that are catching up take turns of at most 1 MiB.

I1: events of one topic are ordered. I2: records are sent only while credit is above 0; an item takes its size, so credit may
go below 0 by one item. Events without records need no credit. I3: a topic that cannot be followed ends alone. I4: pending
events are bounded: answers to `add` by `ANSWERS_MAX`, all others by the topics followed. I5: records read before a delete
are sent before the event that reports the delete.
Threading: event loop only; one task iterates, others may call `add`, `remove` and `grant`.
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
"""Pending answers to `add`; the next `add` waits. About 5 MB, and more topics than a caller adds before it starts to
iterate."""


class _FollowedTopic:
    """One topic of a stream. `queue` is the queue it waits in; None = it has no event to send."""

    __slots__ = ("after_seq", "caught_up", "config_version", "delete_mark", "epoch", "follow_id", "queue", "topic")

    def __init__(self, follow_id: int, topic: Topic, epoch: int, after_seq: int) -> None:
        self.follow_id = follow_id
        self.topic = topic
        self.epoch = epoch
        self.after_seq = after_seq
        self.caught_up = False
        self.config_version = topic.config_version
        self.delete_mark = topic.delete_mark
        self.queue: _TopicQueue | None = None

    @property
    def has_unread(self) -> bool:
        """True = a read would return records, or the gap of another epoch."""
        return self.epoch not in (0, self.topic.id) or self.after_seq < self.topic.head_seq

    @property
    def has_changed(self) -> bool:
        """True = since the last report its configuration changed or records were deleted."""
        return (self.config_version, self.delete_mark) != (self.topic.config_version, self.topic.delete_mark)

    def leave_queue(self) -> None:
        """Remove the topic from the queue it waits in, if any."""
        if self.queue is not None:
            del self.queue[self]
            self.queue = None


_TopicQueue = OrderedDict[_FollowedTopic, None]
"""A FIFO from which any topic can be removed in constant time."""


class LocalFollow:
    """One FollowTopics stream in the store; implements `eddyline.core.store_link.protocol.Follow`."""

    def __init__(self, table: TopicTable, reader: LogReader, traces: RecentTraces) -> None:
        self._table = table
        self._reader = reader
        self._traces = traces
        self._followed: dict[int, _FollowedTopic] = {}
        self._by_topic: dict[Topic, dict[int, _FollowedTopic]] = {}
        self._answers: deque[FollowEvent] = deque()
        self._unreported: _TopicQueue = OrderedDict()
        self._live: _TopicQueue = OrderedDict()
        self._behind: _TopicQueue = OrderedDict()
        self._credit = 0
        self._closed = False
        self._wake = asyncio.Event()
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._followed)

    async def add(self, follow_id: int, topic: str, *, epoch: int = 0, after_seq: int | None = None) -> None:
        """Follow one more topic; see the Protocol. Waits while 10 000 answers are pending.

        Raises:
            InvalidArgument: the stream follows `FOLLOWED_TOPICS_MAX` topics already.
        """
        while len(self._answers) >= ANSWERS_MAX and not self._closed:
            self._room.clear()
            await self._room.wait()
        if self._closed:
            return
        self._drop(follow_id)
        if len(self._followed) >= FOLLOWED_TOPICS_MAX:
            raise InvalidArgument(
                f"a stream may follow at most {FOLLOWED_TOPICS_MAX} topics", field="add", topicsMax=FOLLOWED_TOPICS_MAX
            )
        try:
            log = self._table.get(topic)
            start = log.head_seq if after_seq is None else after_seq
            if start > log.head_seq and epoch in (0, log.id):
                raise CursorAhead(
                    f"the head of topic {topic} is {log.head_seq}, below the cursor {start}",
                    topic=topic,
                    headSeq=log.head_seq,
                    afterSeq=start,
                )
        except EddylineError as error:
            self._answer(FollowEnded(follow_id, error.reason, error.message))
            return
        followed = _FollowedTopic(follow_id, log, epoch, start)
        self._followed[follow_id] = followed
        if log not in self._by_topic:
            self._by_topic[log] = {}
            log.listen(self._on_moved)
        self._by_topic[log][follow_id] = followed
        self._answer(FollowStarted(follow_id, log.info(), start))
        self._enqueue(followed)

    async def remove(self, follow_id: int) -> None:
        """Stop following one topic."""
        self._drop(follow_id)

    async def grant(self, credit_bytes: int) -> None:
        """Add credit. Raises InvalidArgument if more than 64 MiB would be outstanding."""
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
            for event in await self._read_turn(followed) if followed.has_unread else self._report(followed):
                yield event

    def close(self) -> None:
        """Stop following every topic."""
        self._closed = True
        for topic in self._by_topic:
            topic.unlisten(self._on_moved)
        for topics in (self._by_topic, self._followed, self._unreported, self._live, self._behind):
            topics.clear()
        self._room.set()

    async def _read_turn(self, followed: _FollowedTopic) -> list[FollowEvent]:
        """Read a topic's next records, at most `TURN_BYTES_MAX`."""
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
            return []  # removed, or added again, during the read
        followed.epoch = topic.id
        sent_seq = followed.after_seq
        followed.after_seq = result.next_after_seq
        events: list[FollowEvent] = []
        for number, item in enumerate(result.items, start=1):
            self._credit -= item_bytes(item)
            cursor = item.own_seq if isinstance(item, Gap) else item.last_seq
            traces: tuple[SeqTrace, ...] = ()
            if self._traces and not isinstance(item, Gap):
                traces = self._traces.within(topic.id, item.first_seq, item.last_seq)
            # the records between the last item and the cursor were deleted
            whole = result.batch_end and number == len(result.items)
            events.append(FollowItem(followed.follow_id, item, cursor, result.head_seq, traces, whole))
            sent_seq = cursor
        events += self._change_event(followed)
        if sent_seq < followed.after_seq:
            # The newest records were deleted: the next FollowLevel carries the cursor past them.
            followed.caught_up = False
        self._enqueue(followed)
        return events

    def _report(self, followed: _FollowedTopic) -> list[FollowEvent]:
        """Return the events of a topic that has nothing unread."""
        topic = followed.topic
        events = self._change_event(followed)
        if not followed.caught_up:
            followed.caught_up = True
            events.append(FollowLevel(followed.follow_id, topic.head_seq))
        if topic.deleted:
            events += self._end(followed, TopicNotFound(f"topic {topic.name} was deleted", topic=topic.name))
        return events

    def _change_event(self, followed: _FollowedTopic) -> list[FollowEvent]:
        if not followed.has_changed:
            return []
        followed.config_version, followed.delete_mark = followed.topic.config_version, followed.topic.delete_mark
        return [FollowChanged(followed.follow_id, followed.topic.info())]

    def _next(self) -> _FollowedTopic | None:
        """Return the next topic to serve: those that need no credit first, then live ones, then those behind."""
        for queue in (self._unreported, self._live, self._behind) if self._credit > 0 else (self._unreported,):
            if queue:
                followed, _ = queue.popitem(last=False)
                followed.queue = None
                return followed
        return None

    def _enqueue(self, followed: _FollowedTopic) -> None:
        """Move the topic to the queue of its present state; in the same queue it keeps its place."""
        queue: _TopicQueue | None = None
        if followed.has_unread:
            queue = self._live if followed.caught_up else self._behind
        elif not followed.caught_up or followed.topic.deleted or followed.has_changed:
            queue = self._unreported
        if queue is not followed.queue:
            followed.leave_queue()
            if queue is not None:
                queue[followed] = None
                followed.queue = queue
        self._wake.set()

    def _on_moved(self, topic: Topic) -> None:
        for followed in self._by_topic.get(topic, {}).values():
            self._enqueue(followed)

    def _follows(self, followed: _FollowedTopic) -> bool:
        return self._followed.get(followed.follow_id) is followed

    def _end(self, followed: _FollowedTopic, error: EddylineError) -> list[FollowEvent]:
        if not self._follows(followed):
            return []
        self._drop(followed.follow_id)
        return [FollowEnded(followed.follow_id, error.reason, error.message)]

    def _drop(self, follow_id: int) -> None:
        followed = self._followed.pop(follow_id, None)
        if followed is None:
            return
        followed.leave_queue()
        others = self._by_topic[followed.topic]
        del others[follow_id]
        if not others:
            del self._by_topic[followed.topic]
            followed.topic.unlisten(self._on_moved)

    def _answer(self, event: FollowEvent) -> None:
        self._answers.append(event)
        self._wake.set()
