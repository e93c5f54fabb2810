"""Turns whose frames are sent to many at once: what gathers, what is left to the tasks, and what counts as in flight."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.topic import Kind, TopicConfig, TopicInfo
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record
from eddyline.core.store_link.protocol import FollowItem, FollowStarted
from eddyline.delivery.feed.dispatcher import WAKES_A_PASS, Dispatcher
from eddyline.delivery.feed.encode import TopicView, view_of
from eddyline.delivery.feed.fan import Fan
from eddyline.delivery.feed.ring import Ring, RingBudget
from eddyline.delivery.feed.tail import TopicTail
from eddyline.delivery.schedule.in_flight import WORKERS, PendingRead
from eddyline.delivery.stats import DeliveryStats
from tests.support.manual_clock import ManualClock, settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

ALL = view_of((), columns=False)


@dataclass(eq=False)
class Reader:
    """A subscription whose task only notes that it was woken; `takes` = its transport has room."""

    tail: TopicTail
    view: TopicView = ALL
    takes: bool = True
    seq: int = 0
    seqs: list[int] = field(default_factory=list)
    woken: int = 0

    def __post_init__(self) -> None:
        self.waiter = PendingRead(self.wake, self.advance)
        self.waiter.reader.call = self
        self.tail.listeners[self.wake] = None

    def wake(self) -> None:
        self.woken += 1
        self.waiter.reader.is_idle = False

    def advance(self, seq: int, _batch_end: bool, _is_hidden: bool) -> bool:
        self.seq = seq
        self.seqs.append(seq)
        return True


@dataclass
class Stage:
    """A dispatcher, one topic, and readers of it."""

    clock: ManualClock = field(default_factory=ManualClock)
    stats: DeliveryStats = field(default_factory=DeliveryStats)

    def __post_init__(self) -> None:
        self.fan = Fan(clock=self.clock, stats=self.stats)
        self.fan.send_to_all = self._send
        self.dispatcher = Dispatcher(clock=self.clock, stats=self.stats, fan=self.fan)
        self.tail = TopicTail("log", 1, Ring("log", RingBudget(1 << 24), 1 << 24))
        self.tail.start(FollowStarted(1, TopicInfo("log", 7, Kind.LOG, TopicConfig(), 0, 1, "", 0), 0))
        self.dispatcher.notify(self.tail)

    @staticmethod
    def _send(calls: Sequence[object], _message: bytes) -> list[object]:
        return [call for call in calls if isinstance(call, Reader) and not call.takes]

    def readers(self, count: int, *, view: TopicView = ALL, takes: bool = True) -> list[Reader]:
        """Add subscriptions that wait, with idle tasks."""
        readers = [Reader(self.tail, view, takes, self.tail.ring.end_seq) for _ in range(count)]
        for reader in readers:
            self.request(reader)
        return readers

    def request(self, reader: Reader) -> None:
        """Let a subscription wait for its next frame."""
        reader.waiter.view = reader.view
        self.dispatcher.request(self.tail, reader.waiter, reader.seq)
        reader.waiter.reader.is_idle = True

    def append(self, count: int = 1) -> None:
        """Push new records from the store."""
        first = self.tail.ring.end_seq + 1
        batch = Batch.from_rows([Record(key=b"k", data=b"x")] * count).with_seqs(first, 1)
        self.tail.push_item(FollowItem(1, batch, batch.last_seq, batch.last_seq))
        self.dispatcher.notify(self.tail)


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    one = Stage()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(one.dispatcher.run())
        await settle()
        yield one
        running.cancel()


async def test_few_readers_get_each_frame_at_once_and_no_task_is_woken() -> None:
    async with stage() as one:
        readers = one.readers(2)
        for _ in range(3):
            one.append()
        assert [reader.seqs for reader in readers] == [[1, 2, 3]] * 2
        assert not any(reader.woken for reader in readers)
        assert (one.stats.delivered_count, one.clock.pending) == (6, 0)


async def test_what_comes_while_many_are_being_written_is_one_frame() -> None:
    async with stage() as one:
        readers = one.readers(WORKERS)
        for _ in range(5):
            one.append()
        assert {tuple(reader.seqs) for reader in readers} == {(1,)}
        await settle()
        assert {tuple(reader.seqs) for reader in readers} == {(1, 5)}
        assert one.stats.delivered_count == 5 * WORKERS
        assert sum(one.stats.served_records) == 4 * WORKERS


async def test_a_reader_without_room_is_woken_and_keeps_its_cursor() -> None:
    async with stage() as one:
        fast, (slow,) = one.readers(2), one.readers(1, takes=False)
        one.append()
        one.append()
        assert [reader.seqs for reader in fast] == [[1, 2]] * 2
        assert (slow.seq, slow.woken) == (0, 1)
        assert one.stats.delivered_count == 4


async def test_a_reader_whose_task_has_something_to_send_is_left_to_it() -> None:
    async with stage() as one:
        busy, other = one.readers(2)
        busy.waiter.reader.is_idle = False
        own_step = one.readers(1)[0]
        own_step.waiter.view = None
        one.append()
        assert [(reader.seqs, reader.woken) for reader in (busy, other, own_step)] == [([], 1), ([1], 0), ([], 1)]


async def test_equal_views_are_one_object_and_one_encoding() -> None:
    async with stage() as one:
        views = [view_of(prefixes, columns=False) for prefixes in ((b"k",), (b"k", b"kk"), (b"other",))]
        assert views[0] is views[1]
        readers = [reader for view in views for reader in one.readers(2, view=view)]
        one.append()
        assert {tuple(reader.seqs) for reader in readers} == {(1,)}, "what the filter hides moves the cursor too"
        assert one.stats.delivered_count == 4


async def test_a_frame_above_the_bound_goes_through_the_tasks() -> None:
    async with stage() as one:
        readers = one.readers(2)
        one.append(2_000)
        assert [(reader.seqs, reader.woken) for reader in readers] == [([], 1)] * 2


async def test_a_closed_subscription_is_sent_nothing() -> None:
    async with stage() as one:
        readers = one.readers(3)
        one.dispatcher.remove(one.tail, readers[0].waiter)
        one.append()
        assert [reader.seqs for reader in readers] == [[], [1], [1]]


@pytest.mark.parametrize("closes", [False, True])
async def test_more_readers_than_a_pass_are_served_in_parts_and_no_turn_begins_between(closes: bool) -> None:
    async with stage() as one:
        readers = one.readers(2 * WAKES_A_PASS + 1)
        one.append()
        for _ in range(3):
            await asyncio.sleep(0)
            one.append()
            if closes:
                one.dispatcher.remove(one.tail, readers[-1].waiter)
        await settle()
        await settle()
        assert {reader.seq for reader in readers[:-1]} == {4}
        assert readers[-1].seq == (0 if closes else 4)
        assert not any(reader.woken for reader in readers[:-1])
