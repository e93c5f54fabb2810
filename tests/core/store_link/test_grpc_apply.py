"""Batches of sources over a real server: a stream a source, its failures, and stores that have no such call."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import Deadline, StalePosition, StoreUnreachable
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.core.server.server import RawMethod, make_server
from eddyline.core.store_link.grpc import GrpcLink
from eddyline.core.transport.channel import open_channel
from eddyline.v1 import apply_pb2
from tests.support.store.served import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.server.server import RoleServer

    Steps = AsyncIterator[apply_pb2.ApplyStreamRequest]

BATCH = Batch.from_rows([Record(op=Op.PUT, key=b"k", data=b"v", version=b"\x07")])


class Store:
    """Applies steps, and records which source's stream or call brought each. `refuses` = the next step's position that is
    refused; `breaks_off` = streams end without an answer."""

    def __init__(self) -> None:
        self.applied: list[tuple[str, bytes]] = []
        self.opened: list[str] = []
        self.ended: list[str] = []
        self.refuses = b""
        self.breaks_off = False
        self.hangs = False
        self.traced: list[str] = []

    async def apply_stream(self, steps: Steps, _context: object) -> AsyncIterator[bytes]:
        source, answered = "", 0
        try:
            async for step in steps:
                if not source:
                    source = step.source
                    self.opened.append(source)
                if self.breaks_off:
                    return
                if self.hangs:
                    await asyncio.Event().wait()
                if step.new == self.refuses:
                    raise StalePosition("another position is stored")
                self.applied.append(("stream", step.new))
                self.traced.append(step.traceparent)
                answered += 1
                yield apply_pb2.ApplyStreamResponse(
                    first_seq=1, last_seq=answered, epoch=4, ts_ms=5
                ).SerializeToString()
        finally:
            self.ended.append(source)

    async def apply_batch(self, request: apply_pb2.ApplyBatchRequest, _context: object) -> bytes:
        if request.new == self.refuses:
            raise StalePosition("another position is stored")
        self.applied.append(("call", request.new))
        assert request.batch.count == 1
        return apply_pb2.ApplyBatchResponse(first_seq=1, last_seq=1, epoch=4, ts_ms=5).SerializeToString()

    async def release(self, _request: object, _context: object) -> bytes:
        return b""


@asynccontextmanager
async def linked(
    store: Store, *, has_streams: bool = True, timeout_s: float = 10.0
) -> AsyncIterator[tuple[RoleServer, GrpcLink]]:
    server = make_server("127.0.0.1:0")
    methods = {
        "ApplyBatch": RawMethod(store.apply_batch, apply_pb2.ApplyBatchRequest.FromString),
        "ReleaseLease": RawMethod(store.release, apply_pb2.ReleaseLeaseRequest.FromString),
    }
    if has_streams:
        methods["ApplyStream"] = RawMethod(
            store.apply_stream, apply_pb2.ApplyStreamRequest.FromString, request_stream=True, response_stream=True
        )
    server.add_raw_methods("eddyline.v1.ApplyService", methods)
    address = await server.start()
    try:
        async with open_channel(address, own_connection=True) as channel:
            yield server, GrpcLink(channel, timeout_s=timeout_s)
    finally:
        await server.stop(0)


async def apply(link: GrpcLink, new: bytes, source: str = "s", traceparent: str = "") -> int:
    result = await link.apply_batch(source, fence=6, previous=b"p", new=new, batch=BATCH, traceparent=traceparent)
    return result.last_seq


async def test_batches_of_a_source_share_a_stream() -> None:
    store = Store()
    async with linked(store) as (_, link):
        for number, new in enumerate((b"1", b"2", b"3"), start=1):
            assert await apply(link, new, traceparent="00-ab" if new == b"2" else "") == number
        await apply(link, b"4", source="t")
        assert store.opened == ["s", "t"]
    assert store.applied == [("stream", b"1"), ("stream", b"2"), ("stream", b"3"), ("stream", b"4")]
    assert store.traced == ["", "00-ab", "", ""]


async def test_a_store_without_streams_gets_calls() -> None:
    store = Store()
    async with linked(store, has_streams=False) as (_, link):
        for new in (b"1", b"2"):
            assert await apply(link, new) == 1
    assert store.applied == [("call", b"1"), ("call", b"2")]


async def test_a_refusal_is_the_stores_and_the_next_batch_opens_another_stream() -> None:
    store = Store()
    async with linked(store) as (_, link):
        await apply(link, b"1")
        store.refuses = b"2"
        with pytest.raises(StalePosition):
            await apply(link, b"2")
        await apply(link, b"3")
    assert store.opened == ["s", "s"]
    assert store.applied == [("stream", b"1"), ("stream", b"3")]


async def test_a_batch_whose_stream_ends_unanswered_is_a_call_of_its_own() -> None:
    store = Store()
    async with linked(store) as (_, link):
        await apply(link, b"1")
        store.breaks_off = True
        assert await apply(link, b"2") == 1
        store.breaks_off = False
        await apply(link, b"3")
    assert store.applied == [("stream", b"1"), ("call", b"2"), ("stream", b"3")]


async def test_a_store_that_does_not_answer_in_time_is_late_and_its_stream_ends() -> None:
    store = Store()
    async with linked(store, timeout_s=0.2) as (_, link):
        store.hangs = True
        with pytest.raises(Deadline) as late:
            await apply(link, b"1")
        assert late.value.unanswered
        await until(lambda: bool(store.ended))
        store.hangs = False
        await apply(link, b"2")
    assert store.applied == [("stream", b"2")]


async def test_a_stopped_store_is_unreachable() -> None:
    store = Store()
    async with linked(store) as (server, link):
        await apply(link, b"1")
        await server.stop(0)
        with pytest.raises(StoreUnreachable):
            await apply(link, b"2")


async def test_a_cancelled_batch_ends_its_stream() -> None:
    store = Store()
    async with linked(store) as (_, link):
        store.hangs = True
        async with asyncio.TaskGroup() as tasks:
            applying = tasks.create_task(apply(link, b"1"))
            await until(lambda: bool(store.opened))
            applying.cancel()
        assert applying.cancelled()
        store.hangs = False
        await apply(link, b"2")
    assert store.applied == [("stream", b"2")]


async def test_batches_in_flight_share_a_stream_and_get_their_own_answers() -> None:
    store = Store()
    async with linked(store) as (_, link), asyncio.TaskGroup() as tasks:
        sent = [tasks.create_task(apply(link, new)) for new in (b"1", b"2", b"3")]
        assert [await answer for answer in sent] == [1, 2, 3]
    assert store.opened == ["s"]
    assert store.applied == [("stream", b"1"), ("stream", b"2"), ("stream", b"3")]


async def test_a_refusal_ends_the_stream_for_the_batch_behind_it() -> None:
    store = Store()
    async with linked(store) as (_, link):
        store.refuses = b"1"

        async def refused() -> None:
            with pytest.raises(StalePosition):
                await apply(link, b"1")

        async def behind() -> None:
            with suppress(StalePosition):  # without it the stream had ended before the batch was sent, by a call then
                await apply(link, b"2")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(refused())
            tasks.create_task(behind())
        assert ("stream", b"2") not in store.applied
        assert await apply(link, b"3") == 1
    assert store.opened == ["s", "s"]


async def test_a_batch_whose_stream_is_cancelled_for_another_one_is_a_call_of_its_own() -> None:
    store = Store()
    async with linked(store) as (_, link):
        store.hangs = True
        async with asyncio.TaskGroup() as tasks:
            cancelled = tasks.create_task(apply(link, b"1"))
            behind = tasks.create_task(apply(link, b"2"))
            await until(lambda: bool(store.opened))
            cancelled.cancel()
        assert cancelled.cancelled()
        assert behind.result() == 1
    assert store.applied == [("call", b"2")]


async def test_releasing_the_lease_ends_the_stream() -> None:
    store = Store()
    async with linked(store) as (_, link):
        await apply(link, b"1")
        await link.release_lease("s", fence=6)
        await until(lambda: bool(store.ended))
        assert len(link._applying) == 0
