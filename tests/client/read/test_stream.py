"""Streams of the log: events with places, resumed at the last frame taken; and reads, which are made of them."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from eddyline.client.transport.call import Retry
from eddyline.client.watch.events import CaughtUp, Lost, Position, Records, SnapshotBegan, SnapshotEnded
from eddyline.core.codec.records import answer_from_rows, fill_columns, gap_to_pb
from eddyline.core.errors import (
    Deadline,
    EddylineError,
    InvalidArgument,
    MalformedColumns,
    NotReady,
    TopicNotFound,
)
from eddyline.core.model.read import RecordFilter
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.core.runtime.clock import SystemClock
from eddyline.v1 import log_pb2, types_pb2
from tests.support.clients.clients import NoJitter, client_of
from tests.support.delivery.scripted_roles import UnscriptedLog, scripted_server
from tests.support.store.served import served_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.client.connect import Client

Frame = log_pb2.StreamRecordsResponse
Step = Frame | EddylineError
EPOCH = 7


@dataclass(slots=True)
class ScriptedStream(UnscriptedLog):
    """Answers the n-th StreamRecords by the n-th script, whose last step may be an error."""

    scripts: list[list[Step]]
    requests: list[log_pb2.StreamRecordsRequest] = field(default_factory=list)

    async def StreamRecords(self, request: log_pb2.StreamRecordsRequest, context: object) -> AsyncIterator[Frame]:
        self.requests.append(request)
        for step in self.scripts[len(self.requests) - 1]:
            if isinstance(step, EddylineError):
                raise step
            yield step

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(request.epoch, request.after_seq) for request in self.requests]


@asynccontextmanager
async def streaming(*scripts: list[Step]) -> AsyncIterator[tuple[Client, ScriptedStream]]:
    log = ScriptedStream(list(scripts))
    async with scripted_server(log=log) as address, client_of(address) as client:
        yield client, log


def rows(*seqs: int, at: int = 0) -> Frame:
    records = [types_pb2.Record(seq=seq, op=types_pb2.OP_PUT, key=b"k%d" % seq) for seq in seqs]
    batch = types_pb2.RecordBatch(records=records)
    return Frame(next_after_seq=at or seqs[-1], epoch=EPOCH, rows=batch)


def columns(*seqs: int) -> Frame:
    frame = rows(*seqs)
    fill_columns(frame.columns, answer_from_rows(frame.rows))
    return frame


def level(seq: int) -> Frame:
    return Frame(next_after_seq=seq, epoch=EPOCH, caught_up=Frame.CaughtUp(head_seq=seq))


def lost(gap: Gap, at: int, epoch: int = EPOCH) -> Frame:
    return Frame(next_after_seq=at, epoch=epoch, gap=gap_to_pb(gap))


async def test_columns_that_do_not_fit_together_are_an_error_and_the_next_read_gets_them_again() -> None:
    damaged = columns(2, 3)
    damaged.columns.key.values += b"x"
    async with streaming([columns(1), damaged], [columns(2, 3), level(3)]) as (client, log):
        events = client.stream("t")
        first = await anext(events)
        with pytest.raises(MalformedColumns, match="key"):
            await anext(events)
        later = [event async for event in events]
    assert log.places == [(0, 0), (EPOCH, 1)]
    assert {request.format for request in log.requests} == {types_pb2.BATCH_FORMAT_COLUMNS}
    records = [record for event in (first, *later) if isinstance(event, Records) for record in event.records]
    assert [(record.seq, record.key) for record in records] == [(1, b"k1"), (2, b"k2"), (3, b"k3")]


async def test_a_stream_that_breaks_goes_on_behind_its_last_frame() -> None:
    told: list[str] = []
    first: list[Step] = [rows(1, 2), Frame(next_after_seq=5, epoch=EPOCH), NotReady("stopping")]
    async with streaming(first, [NotReady("starting")], [rows(6), level(6)]) as (client, log):
        items = client.read("t", on_retry=lambda error: told.append(error.reason), on_resume=lambda: told.append("on"))
        assert [item.seq async for item in items] == [1, 2, 6]
    assert log.places == [(0, 0), (EPOCH, 5), (EPOCH, 5)]
    assert told == ["NOT_READY", "on"]


async def test_a_stream_at_its_time_limit_reopens_without_a_callback() -> None:
    told: list[str] = []
    async with streaming([rows(1), Deadline("over")], [rows(2)]) as (client, log):
        items = client.read("t", follow=True, on_retry=lambda error: told.append(error.reason))
        assert [item.seq async for item in items] == [1, 2]
    assert log.places == [(0, 0), (EPOCH, 1)]
    assert told == []


async def test_an_error_no_retry_mends_is_raised_behind_what_came() -> None:
    async with streaming([rows(1), TopicNotFound("gone")]) as (client, _log):
        items = client.read("t", follow=True)
        assert (await anext(items)).seq == 1
        with pytest.raises(TopicNotFound):
            await anext(items)


async def test_healing_tells_the_gap_then_replaces_all_by_a_snapshot() -> None:
    gap = Gap(3, 9, GapReason.TTL)
    begin = Frame(next_after_seq=2, epoch=EPOCH, snapshot_begin=Frame.SnapshotBegin(seq=12))
    end = Frame(next_after_seq=12, epoch=EPOCH, snapshot_end=Frame.SnapshotEnd(count=1))
    cut: list[Step] = [lost(gap, 2), begin, NotReady("stopping")]
    async with streaming(cut, [lost(gap, 2), begin, rows(4, at=2), end, rows(13), level(13)]) as (client, log):
        events = [event async for event in client.stream("t", after=Position(EPOCH, 2), heals=True)]
    assert log.places == [(EPOCH, 2), (EPOCH, 2)]
    assert {request.on_gap for request in log.requests} == {log_pb2.GAP_POLICY_HEAL}
    assert events[:2] == events[2:4] == [Lost("t", gap, Position(EPOCH, 2)), SnapshotBegan("t", 12)]
    assert isinstance(events[4], Records)
    assert (events[4].in_snapshot, events[4].position) == (True, Position(EPOCH, 2))
    assert events[5] == SnapshotEnded("t", 12, 1, Position(EPOCH, 12))
    assert isinstance(events[6], Records)
    assert (events[6].in_snapshot, events[6].position) == (False, Position(EPOCH, 13))
    assert events[7] == CaughtUp()


async def test_a_re_created_topic_gets_no_request_with_the_old_end() -> None:
    gap = Gap(0, 0, GapReason.RECREATED, old_epoch=EPOCH, new_epoch=9)
    async with streaming([lost(gap, 0, epoch=9), NotReady("stopping")], [level(0)]) as (client, log):
        events = [event async for event in client.stream("t", after=Position(EPOCH, 2), end_seq=5)]
    assert events == [Lost("t", gap, Position(9, 0)), CaughtUp()]
    assert [(request.epoch, request.end_seq) for request in log.requests] == [(EPOCH, 5), (9, 0)]


async def test_a_read_of_a_whole_store_is_bounded_by_end_filter_and_head(tmp_path: Path) -> None:
    async with served_store(tmp_path) as store, client_of(store.address) as client:
        records = [Record(op=Op.PUT, key=b"k%d" % number) for number in range(30)]
        epoch = (await client.append("kv", records, create=Kind.KV)).epoch
        wanted = RecordFilter(key_prefixes=(b"k2",))
        events = [event async for event in client.stream("kv", after=2, end_seq=22, record_filter=wanted)]
        assert [record.seq for event in events if isinstance(event, Records) for record in event.records] == [3, 21]
        async with aclosing(client.stream("kv", after=30, follow=True)) as following:
            assert await anext(following) == CaughtUp()
            await client.append("kv", [Record(op=Op.PUT, key=b"z")])
            event = await anext(following)
        assert isinstance(event, Records)
        assert event.position == Position(epoch, 31)


async def test_records_say_where_an_append_ends(tmp_path: Path) -> None:
    async with served_store(tmp_path) as store, client_of(store.address) as client:
        sizes, ends, seq = (1, 400, 2), [], 0
        for size in sizes:
            records = [
                Record(op=Op.PUT, key=b"%d" % row, data=bytes(8 << 10), tag="t" if row < 9 else None)
                for row in range(size)
            ]
            await client.append("kv", records, create=Kind.KV)
            seq += size
            ends.append(seq)
        for wanted, count in ((RecordFilter(), seq), (RecordFilter(tags=("t",)), 1 + 9 + 2)):
            events = [event async for event in client.stream("kv", record_filter=wanted)]
            read = [event for event in events if isinstance(event, Records)]
            assert sum(len(event.records) for event in read) == count
            assert {event.position.seq for event in read if event.batch_end} <= set(ends)
            assert read[-1].batch_end


async def test_a_stream_that_heals_brings_what_a_cap_took_from_the_fold(tmp_path: Path) -> None:
    async with served_store(tmp_path) as store, client_of(store.address) as client:
        await client.create_topic("kv", Kind.KV, TopicConfig(cap_records=1))
        for key in (b"a", b"b", b"c"):
            await client.append("kv", [Record(op=Op.PUT, key=key)])
        held: dict[bytes | None, int] = {}
        async for event in client.stream("kv", after=1, heals=True):
            if isinstance(event, SnapshotBegan):
                held.clear()
            elif isinstance(event, Records):
                held.update((record.key, record.seq) for record in event.records)
        assert held == {b"a": 1, b"b": 2, b"c": 3}


@pytest.mark.parametrize("after", [-1, 1 << 64, Position(-1, 0), Position(EPOCH, -2), Position(1 << 64, 0)])
async def test_a_place_that_there_is_not_is_refused_in_every_kind_of_read(after: Position | int) -> None:
    async with streaming() as (client, log):
        with pytest.raises(InvalidArgument):
            client.read("t", after=after)
        with pytest.raises(InvalidArgument):
            client.stream("t", after=after)
        with pytest.raises(InvalidArgument):
            await anext(client.history("t", b"k", after=after))
    assert log.requests == []


async def test_a_snapshot_that_never_ends_is_no_progress() -> None:
    class Stepping(SystemClock):
        now_s = 0.0

        def monotonic_s(self) -> float:
            self.now_s += 1.0
            return self.now_s

    begin = Frame(next_after_seq=2, epoch=EPOCH, snapshot_begin=Frame.SnapshotBegin(seq=12))
    cut: list[Step] = [lost(Gap(3, 9, GapReason.TTL), 2), begin, NotReady("stopping")]
    async with streaming(*[cut] * 100) as (client, _log):
        client._retry = Retry(Stepping(), random_source=NoJitter(1))
        with pytest.raises(NotReady):
            async for _ in client.stream("t", after=Position(EPOCH, 2), heals=True):
                pass
