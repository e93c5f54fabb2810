"""Frames sent to many at once: each reader gets exactly its records, whatever its windows do, and its task is not needed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record
from eddyline.delivery.feed.fan import FAN_BYTES_MAX
from eddyline.delivery.resume_token import ResumeTokens
from eddyline.delivery.rpc.watch import request_from_pb
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import types_pb2
from eddyline.wire.http2 import frames
from tests.support.delivery.role import ServedDelivery, Watch, served_delivery, tail
from tests.support.hang import HANG_S
from tests.support.store.simulated import append, log_topic
from tests.support.wire.frames import data, headers, message, request_block, rst_stream, window_update
from tests.support.wire.frames import settings as settings_frame
from tests.support.wire.raw_client import RawClient, raw_client

if TYPE_CHECKING:
    from collections.abc import Sequence

PATH = b"/eddyline.v1.DeliveryService/WatchTopics"
LARGE = (1 << 31) - 1
"""A window that HTTP/2 allows no larger."""
FIRST_WINDOW = 65_535
KEYS = (b"a", b"b", b"c")


class Reader:
    """A client that gives windows as the test says. It checks each message as it comes."""

    def __init__(self, client: RawClient, log: Log, prefixes: tuple[bytes, ...], window: int) -> None:
        self._client = client
        self._log = log
        wanted = tail("log", *prefixes)
        self._prefixes = prefixes
        self._began = log.head_seq
        self._tokens = ResumeTokens([request_from_pb(pb.WatchTopicsRequest(topics=[wanted])).topics[0].signature()])
        self._initial = self._window = self._window_max = window
        self._connection_window = FIRST_WINDOW
        self._bytes = b""
        self._taken = 0
        self._seq = log.head_seq
        self.seqs: list[int] = []
        self.is_caught_up = False
        self.has_ended = False
        request = pb.WatchTopicsRequest(topics=[wanted], heartbeat_ms=100).SerializeToString()
        client.send(settings_frame({frames.INITIAL_WINDOW_SIZE: window}))
        client.send(headers(1, request_block(PATH)), data(1, message(request), is_end=True))

    @property
    def expected(self) -> list[int]:
        """The seqs that it should have once all is sent."""
        return [
            seq
            for seq, key in enumerate(self._log.keys, 1)
            if seq > self._began and (not self._prefixes or key.startswith(self._prefixes))
        ]

    def give(self, increment: int) -> None:
        """Open both windows further."""
        for stream_id in (0, 1):
            self._client.send(window_update(stream_id, increment))
        self._window += increment
        self._window_max = max(self._window_max, self._window)
        self._connection_window += increment

    def resize(self, window: int) -> None:
        """Change the window that streams begin with, which changes this one's, below 0 too."""
        self._client.send(settings_frame({frames.INITIAL_WINDOW_SIZE: window}))
        self._window += window - self._initial
        self._window_max = max(self._window_max, self._window)
        self._initial = window

    def end(self, *, is_rude: bool) -> None:
        """End the stream, or the connection without a word."""
        self.has_ended = True
        if is_rude:
            self._client.abort()
        else:
            self._client.send(rst_stream(1))

    async def settle(self) -> None:
        """Take all that is sent."""
        await self._client.settle()
        self._parse()
        assert self._taken <= min(self._window_max, self._connection_window)
        self._window_max = max(self._window, self._taken)

    async def finish(self) -> None:
        """Open all windows, and read until all has come."""
        self.resize(1 << 20)
        self.give(1 << 30)
        while not self.is_caught_up or self.seqs != self.expected:
            await self._client.next_frame()
            self._parse()

    def _parse(self) -> None:
        fresh, self._client.frames = self._client.frames, []
        for frame in fresh:
            if frame.kind == frames.DATA and frame.stream_id == 1:
                self._bytes += frame.payload
                self._taken += len(frame.payload)
        while len(self._bytes) >= 5 and len(self._bytes) >= (end := 5 + int.from_bytes(self._bytes[1:5], "big")):
            self._take(pb.WatchTopicsResponse.FromString(self._bytes[5:end]))
            self._bytes = self._bytes[end:]

    def _take(self, answer: pb.WatchTopicsResponse) -> None:
        kind = answer.WhichOneof("frame")
        if kind in ("rows", "progress"):
            self.seqs += [record.seq for record in answer.rows.records]
            assert answer.cursor.seq > self._seq
            self._seq = answer.cursor.seq
            assert self.seqs == [seq for seq in self.expected if seq <= self._seq]
            assert not answer.batch_end or self._seq in self._log.ends
        else:
            assert kind in ("caught_up", "heartbeat")
            self.is_caught_up = self.is_caught_up or kind == "caught_up"
            token_seq = self._tokens.decode(answer.resume_token)["log"].cursor.seq
            assert token_seq == self._seq, "a token is after exactly what came before it"


class Log:
    """The topic as it was written."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.ends: set[int] = set()

    @property
    def head_seq(self) -> int:
        """Seq of the last record."""
        return len(self.keys)

    async def append(self, served: ServedDelivery, keys: Sequence[bytes], size: int) -> None:
        """Append a batch of one record a key."""
        self.keys += keys
        self.ends.add(self.head_seq)
        batch = Batch.from_rows([Record(key=key, data=bytes(size)) for key in keys])
        await append(served.store, "log", batch)


SIZES = st.sampled_from((0, 100, 100, 100, 3_000, FAN_BYTES_MAX - 60, 40_000))
WINDOWS = st.sampled_from((0, 30, 400, 5_000, 70_000, 1 << 20))
NUMBERS = st.integers(0, 9)
STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=4), SIZES),
    st.tuples(st.just("append"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=1), st.just(100)),
    st.tuples(st.just("open"), WINDOWS, st.sampled_from(((), (), (b"a",), (b"b", b"c")))),
    st.tuples(st.just("give"), NUMBERS, st.sampled_from((1, 50, 300, 6_000))),
    st.tuples(st.just("resize"), NUMBERS, WINDOWS),
    st.tuples(st.just("end"), NUMBERS, st.booleans()),
    st.tuples(st.just("settle"), NUMBERS, st.just(0)),
    st.tuples(st.just("pass"), st.integers(0, 30), st.sampled_from((0.0, 0.0, 0.1))),
)


async def _run(steps: list[tuple[str, object, object]]) -> None:
    async with asyncio.timeout(HANG_S), served_delivery(wire="own") as served, AsyncExitStack() as stack:
        await log_topic(served.store)
        port = int(served.address.rpartition(":")[2])
        log, readers = Log(), list[Reader]()

        async def opened(prefixes: tuple[bytes, ...], window: int) -> None:
            client = await stack.enter_async_context(raw_client(port))
            readers.append(Reader(client, log, prefixes, window))
            await served.until(lambda: served.role.stats.watch_count >= sum(not one.has_ended for one in readers))
            await served.until(lambda: all(one.topics[0].tail.resolved.is_set() for one in served.role.watches.opened))

        for window in (1 << 20, 1 << 20, 300):
            await opened((), window)
        for kind, first, second in steps:
            living = [one for one in readers if not one.has_ended]
            match kind, first, second:
                case "append", list(keys), int(size):
                    await log.append(served, keys, size)
                case "open", int(window), tuple(prefixes):
                    await opened(prefixes, window)
                case "pass", int(turns), float(seconds):
                    served.clock.advance(seconds)
                    for _ in range(turns):
                        await asyncio.sleep(0)
                case "give", int(number), int(increment) if living:
                    living[number % len(living)].give(increment)
                case "resize", int(number), int(window) if living:
                    living[number % len(living)].resize(window)
                case "settle", int(number), _ if living:
                    await living[number % len(living)].settle()
                case "end", int(number), bool(is_rude) if living:
                    living[number % len(living)].end(is_rude=is_rude)
        living = [one for one in readers if not one.has_ended]
        for one in living:
            await one.finish()
        await served.until(lambda: served.role.stats.watch_count == len(living))
        sent = sorted(subscriber.reader.sent_count for subscriber in served.role.watches.opened)
        assert sent == sorted(len(one.seqs) for one in living)
        assert served.role.stats.queued_bytes == 0


@given(steps=st.lists(STEPS, max_size=40))
def test_each_reader_gets_exactly_its_records_whatever_its_windows_do(
    steps: list[tuple[str, object, object]],
) -> None:
    asyncio.run(_run(steps))  # noqa: TID251


async def _fanned(served: ServedDelivery, watches: list[Watch], size: int, sent: list[tuple[int, int]]) -> None:
    """Append a record, which all get; add the numbers of calls that the fan tried, and that it left."""
    send_to_all = served.role.fan.send_to_all

    def noted(calls: Sequence[object], data_of: bytes) -> Sequence[object]:
        behind = send_to_all(calls, data_of)
        sent.append((len(calls), len(behind)))
        return behind

    served.role.fan.send_to_all = noted
    await append(served.store, "log", Batch.from_rows([Record(data=bytes(size))]))
    for watch in watches:
        assert await watch.data(1) == [bytes(size)]
    served.role.fan.send_to_all = send_to_all


@pytest.mark.parametrize("wire", ["own", "grpc"])
async def test_a_small_frame_is_sent_to_many_at_once_on_the_own_wire(wire: str) -> None:
    async with served_delivery(wire=wire) as served, AsyncExitStack() as stack:
        await log_topic(served.store)
        watches = [await stack.enter_async_context(served.watch(tail("log"))) for _ in range(3)]
        watches.append(await stack.enter_async_context(served.watch(tail("log"), format=types_pb2.BATCH_FORMAT_ROWS)))
        for watch in watches:
            await watch.until_kind("caught_up")
        for _ in range(2):
            sent: list[tuple[int, int]] = []
            await _fanned(served, watches, 100, sent)
            assert sent == ([(4, 0)] if wire == "own" else [])
        await _fanned(served, watches, FAN_BYTES_MAX, sent := [])
        assert sent == [], "a large one goes through the tasks"
        answer = await served.delivery.ExplainWatch(pb.ExplainWatchRequest())
        assert [watch.sent_count for watch in answer.watches] == [3] * 4
        assert {watch.topics[0].standing for watch in answer.watches} == {pb.WATCH_STANDING_LEVEL}
        assert answer.watches[0].sent_bytes > FAN_BYTES_MAX


async def test_a_stream_that_owes_a_token_gets_it_before_the_next_frame() -> None:
    async with served_delivery(wire="own") as served:
        await log_topic(served.store)
        async with served.watch(tail("log"), heartbeat_ms=100) as watch:
            await watch.until_kind("caught_up")
            await _fanned(served, [watch], 1, [])
            served.clock.advance(0.1)
            await append(served.store, "log", Batch.from_rows([Record(data=b"x")]))
            assert [(await watch.next()).WhichOneof("frame") for _ in range(2)] == ["heartbeat", "rows"]
            resumed = watch.token
        async with served.watch(tail("log"), resume_token=resumed) as watch:
            assert await watch.data(1) == [b"x"]


async def test_going_away_has_the_token_after_what_was_sent_to_many() -> None:
    async with served_delivery(wire="own") as served:
        await log_topic(served.store)
        async with served.watch(tail("log")) as watch:
            await watch.until_kind("caught_up")
            await _fanned(served, [watch], 1, [])
            await append(served.store, "log", Batch.from_rows([Record(data=b"x")]))
            assert await watch.data(1) == [b"x"]
            for subscriber in served.role.watches.opened:
                subscriber.leave_after(0.0, pb.GOING_AWAY_REASON_DRAINING)
            token = (await watch.kind("going_away")).resume_token
            with pytest.raises(StopAsyncIteration):
                await watch.next()
        wanted = request_from_pb(pb.WatchTopicsRequest(topics=[tail("log")]))
        assert ResumeTokens([wanted.topics[0].signature()]).decode(token)["log"].cursor.seq == 2
