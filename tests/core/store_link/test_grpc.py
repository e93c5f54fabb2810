"""The store's link over a real server: its requests, results and failures."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.core.codec.records import gap_to_pb, record_to_pb
from eddyline.core.codec.state import topic_config_to_pb
from eddyline.core.errors import Deadline, EddylineError, NotReady, StalePosition, StoreUnreachable, TooManyScans
from eddyline.core.model.read import RecordFilter
from eddyline.core.model.source import Renewal, SourceDefinition, SourceReport
from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.core.server.server import RawMethod, make_server
from eddyline.core.store_link.grpc import GrpcLink
from eddyline.core.transport.channel import open_channel
from eddyline.v1 import apply_pb2, fold_pb2, log_pb2, topic_pb2, types_pb2
from tests.support.models.batches import batch_to_columns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import grpc
    from google.protobuf.message import Message

    from eddyline.core.store_link.protocol import StoreLink

    Handler = Callable[[Message, grpc.aio.ServicerContext[object, object]], Awaitable[Message]]

PUT = Record(op=Op.PUT, key=b"k", data=b"v", source_ts_ns=5, version=b"\x07")
PLACED = Batch.from_rows([PUT]).with_seqs(3, 1_000)
TOPIC = topic_pb2.Topic(
    name="t",
    epoch=4,
    kind=topic_pb2.TOPIC_KIND_KV,
    config=topic_config_to_pb(TopicConfig(Durability.FSYNC, 7)),
    head_seq=9,
    earliest_seq=2,
    source="s",
    create_ts_ms=11,
)
SOURCE = apply_pb2.SourceState(
    definition=apply_pb2.SourceDefinition(name="s", topic="t", bucket="b"),
    position=b"p",
    fence=6,
    holder="h",
    lease_remaining_ms=50,
    state="LIVE",
    state_reason="",
    head_seq=9,
    reported_ms=-1,
    source_last_revision=20,
    lag=2,
)
STATE = fold_pb2.FoldState(fold_seq=9, epoch=4, source_state="LIVE", staleness_ms=3)


class Store:
    """Answers calls by the test's script, and records the requests."""

    def __init__(self, *scripted: tuple[str, type[Message], Message | Exception]) -> None:
        self.server = make_server("127.0.0.1:0")
        self.requests: list[Message] = []
        self.remaining_s: list[float] = []
        for method, request_type, answer in scripted:
            self._add(method, request_type, answer)

    def add(self, method: str, request_type: type[Message], answer: Callable[..., object], *, stream: bool) -> None:
        service, _, name = method.partition("/")
        raw = RawMethod(answer, request_type.FromString, request_stream=stream, response_stream=True)
        self.server.add_raw_methods(f"eddyline.v1.{service}", {name: raw})

    def _add(self, method: str, request_type: type[Message], answer: Message | Exception) -> None:
        async def answered(request: Message, context: grpc.aio.ServicerContext[object, object]) -> bytes:
            self.requests.append(request)
            self.remaining_s.append(context.time_remaining())
            if isinstance(answer, Exception):
                raise answer
            return answer.SerializeToString()

        service, _, name = method.partition("/")
        self.server.add_raw_methods(f"eddyline.v1.{service}", {name: RawMethod(answered, request_type.FromString)})


@asynccontextmanager
async def linked(store: Store, *, timeout_s: float = 10.0) -> AsyncIterator[StoreLink]:
    address = await store.server.start()
    try:
        async with open_channel(address, own_connection=True) as channel:
            yield GrpcLink(channel, timeout_s=timeout_s)
    finally:
        await store.server.stop(0)


async def test_apply_batch_sends_fence_positions_and_columns() -> None:
    answer = apply_pb2.ApplyBatchResponse(first_seq=3, last_seq=3, epoch=4, deduplicated=True)
    store = Store(("ApplyService/ApplyBatch", apply_pb2.ApplyBatchRequest, answer))
    batch = Batch.from_rows([PUT])
    async with linked(store) as link:
        result = await link.apply_batch("s", fence=6, previous=b"p", new=b"q", batch=batch)
    assert (result.first_seq, result.last_seq, result.epoch, result.deduplicated) == (3, 3, 4, True)
    assert store.requests == [
        apply_pb2.ApplyBatchRequest(source="s", fence=6, previous=b"p", new=b"q", batch=batch_to_columns(batch))
    ]


async def test_a_position_alone_sends_no_batch() -> None:
    store = Store(("ApplyService/ApplyBatch", apply_pb2.ApplyBatchRequest, apply_pb2.ApplyBatchResponse()))
    async with linked(store) as link:
        await link.apply_batch("s", fence=6, previous=b"p", new=b"q", batch=None)
    assert store.requests == [apply_pb2.ApplyBatchRequest(source="s", fence=6, previous=b"p", new=b"q")]


async def test_topics_are_made_and_read() -> None:
    store = Store(
        ("TopicService/CreateTopic", topic_pb2.CreateTopicRequest, topic_pb2.CreateTopicResponse(topic=TOPIC)),
        ("TopicService/GetTopic", topic_pb2.GetTopicRequest, topic_pb2.GetTopicResponse(topic=TOPIC)),
    )
    async with linked(store) as link:
        made = await link.create_topic("t", Kind.KV, TopicConfig(Durability.FSYNC, 7))
        assert await link.get_topic("t") == made
    assert (made.name, made.epoch, made.kind, made.head_seq, made.earliest_seq) == ("t", 4, Kind.KV, 9, 2)
    assert (made.config, made.source, made.create_ts_ms) == (TopicConfig(Durability.FSYNC, 7), "s", 11)
    wanted = topic_pb2.Topic(name="t", kind=topic_pb2.TOPIC_KIND_KV, config=TOPIC.config)
    assert store.requests == [topic_pb2.CreateTopicRequest(topic=wanted), topic_pb2.GetTopicRequest(topic="t")]


async def test_sources_and_leases_are_translated() -> None:
    leased = apply_pb2.AcquireLeaseResponse(fence=7, source=SOURCE)
    store = Store(
        (
            "ApplyService/PutSource",
            apply_pb2.PutSourceRequest,
            apply_pb2.PutSourceResponse(source=SOURCE, created=True),
        ),
        (
            "ApplyService/GetSource",
            apply_pb2.ApplyServiceGetSourceRequest,
            apply_pb2.ApplyServiceGetSourceResponse(source=SOURCE),
        ),
        (
            "ApplyService/DeleteSource",
            apply_pb2.ApplyServiceDeleteSourceRequest,
            apply_pb2.ApplyServiceDeleteSourceResponse(),
        ),
        ("ApplyService/AcquireLease", apply_pb2.AcquireLeaseRequest, leased),
        ("ApplyService/RenewLease", apply_pb2.RenewLeaseRequest, apply_pb2.RenewLeaseResponse(lease_remaining_ms=80)),
        ("ApplyService/ReleaseLease", apply_pb2.ReleaseLeaseRequest, apply_pb2.ReleaseLeaseResponse()),
    )
    async with linked(store) as link:
        definition = SourceDefinition("s", "t", "b")
        info, created = await link.put_source(definition)
        assert created
        assert (info.definition, info.position, info.fence, info.holder) == (definition, b"p", 6, "h")
        assert (info.report, info.reported_ms, info.head_seq) == (SourceReport("LIVE", "", 20, 2), -1, 9)
        assert await link.get_source("s") == info
        lease = await link.acquire_lease("s", holder="h", lease_ms=500)
        assert (lease.fence, lease.source) == (7, info)
        assert await link.renew_lease("s", fence=7, report=SourceReport("LIVE", "why", 21, 1)) == Renewal(80)
        await link.release_lease("s", fence=7)
        await link.delete_source("s")
    assert store.requests[2:] == [
        apply_pb2.AcquireLeaseRequest(source="s", holder="h", lease_ms=500),
        apply_pb2.RenewLeaseRequest(
            source="s", fence=7, state="LIVE", state_reason="why", source_last_revision=21, lag=1
        ),
        apply_pb2.ReleaseLeaseRequest(source="s", fence=7),
        apply_pb2.ApplyServiceDeleteSourceRequest(source="s"),
    ]


async def test_all_pages_of_sources_are_listed() -> None:
    store = Store()

    async def page(request: apply_pb2.ApplyServiceListSourcesRequest, _context: object) -> bytes:
        number = int(request.page_token or "0")
        source = apply_pb2.SourceState(definition=apply_pb2.SourceDefinition(name=f"s{number}"))
        token = str(number + 1) if number < 2 else ""
        return apply_pb2.ApplyServiceListSourcesResponse(sources=[source], next_page_token=token).SerializeToString()

    raw = RawMethod(page, apply_pb2.ApplyServiceListSourcesRequest.FromString)
    store.server.add_raw_methods("eddyline.v1.ApplyService", {"ListSources": raw})
    async with linked(store) as link:
        assert [source.definition.name for source in await link.list_sources()] == ["s0", "s1", "s2"]


async def test_a_read_gives_batches_and_gaps_in_their_places() -> None:
    gap = Gap(1, 2, GapReason.UNSYNCED, seq=2)
    answer = log_pb2.ReadRecordsResponse(
        items=[log_pb2.BatchItem(gap=gap_to_pb(gap)), log_pb2.BatchItem(columns=batch_to_columns(PLACED))],
        next_after_seq=3,
        head_seq=5,
        earliest_seq=1,
        lag=2,
        epoch=4,
    )
    store = Store(("LogService/ReadRecords", log_pb2.ReadRecordsRequest, answer))
    wanted = RecordFilter(key_prefixes=(b"k",), tags=("x",), exclude_nodes=("n",), ops=(Op.PUT,))
    async with linked(store) as link:
        result = await link.read_records("t", after_seq=0, epoch=4, limit=10, max_bytes=99, record_filter=wanted)
    first, second = result.items
    assert first == gap
    assert isinstance(second, Batch)
    assert second.to_rows() == PLACED.to_rows()
    assert (result.next_after_seq, result.head_seq, result.earliest_seq, result.epoch) == (3, 5, 1, 4)
    assert store.requests == [
        log_pb2.ReadRecordsRequest(
            topic="t",
            epoch=4,
            limit=10,
            max_bytes=99,
            format=types_pb2.BATCH_FORMAT_COLUMNS,
            filter=log_pb2.RecordFilter(key_prefixes=[b"k"], tags=["x"], exclude_nodes=["n"], ops=[types_pb2.OP_PUT]),
        )
    ]


async def test_the_deadline_of_a_read_includes_its_wait() -> None:
    store = Store(("LogService/ReadRecords", log_pb2.ReadRecordsRequest, log_pb2.ReadRecordsResponse()))
    async with linked(store) as link:
        await link.read_records("t", after_seq=0)
        await link.read_records("t", after_seq=0, wait_ms=30_000)
    short_s, long_s = store.remaining_s
    assert 0 < short_s < 20
    assert 20 < long_s < 50


async def test_entries_come_in_the_order_of_the_request_with_none_for_missing_keys() -> None:
    entry = PUT._replace(seq=3, ts_ms=1_000)
    answer = fold_pb2.BatchGetEntriesResponse(
        entries=[fold_pb2.MaybeEntry(), fold_pb2.MaybeEntry(entry=record_to_pb(entry))], state=STATE
    )
    store = Store(("FoldService/BatchGetEntries", fold_pb2.BatchGetEntriesRequest, answer))
    async with linked(store) as link:
        page = await link.batch_get_entries("t", [b"gone", b"k"], min_seq=2)
    assert page.entries == (None, entry)
    assert (page.state.fold_seq, page.state.epoch, page.state.source_state, page.state.staleness_ms) == (
        9,
        4,
        "LIVE",
        3,
    )
    assert store.requests == [fold_pb2.BatchGetEntriesRequest(topic="t", keys=[b"gone", b"k"], min_seq=2)]


async def test_a_range_yields_pages_and_ends_with_the_rest() -> None:
    store = Store()

    async def scan(request: fold_pb2.RangeEntriesRequest, _context: object) -> AsyncIterator[bytes]:
        store.requests.append(request)
        columns = batch_to_columns(PLACED)
        yield fold_pb2.RangeEntriesResponse(columns=columns, state=STATE).SerializeToString()
        yield fold_pb2.RangeEntriesResponse(state=STATE).SerializeToString()

    store.add("FoldService/RangeEntries", fold_pb2.RangeEntriesRequest, scan, stream=False)
    async with linked(store) as link:
        pages = [page async for page in link.range_entries("t", key_prefix=b"k", after_key=b"a", limit=5, min_seq=1)]
    assert [page.batch.to_rows() if page.batch is not None else None for page in pages] == [PLACED.to_rows(), None]
    assert store.requests == [
        fold_pb2.RangeEntriesRequest(
            topic="t", key_prefix=b"k", after_key=b"a", limit=5, min_seq=1, format=types_pb2.BATCH_FORMAT_COLUMNS
        )
    ]


async def test_a_range_that_is_left_early_ends_at_the_store() -> None:
    store, ended = Store(), asyncio.Event()

    async def scan(_request: fold_pb2.RangeEntriesRequest, _context: object) -> AsyncIterator[bytes]:
        try:
            yield fold_pb2.RangeEntriesResponse(state=STATE).SerializeToString()
            await asyncio.Event().wait()
        finally:
            ended.set()

    store.add("FoldService/RangeEntries", fold_pb2.RangeEntriesRequest, scan, stream=False)
    async with linked(store) as link:
        pages = link.range_entries("t")
        await anext(aiter(pages))
        await pages.aclose()  # type: ignore[attr-defined]  # an asynchronous generator, which the Protocol leaves open
        await asyncio.wait_for(ended.wait(), 5)


async def test_an_error_in_the_middle_of_a_range_keeps_its_class() -> None:
    store = Store()

    async def scan(_request: fold_pb2.RangeEntriesRequest, _context: object) -> AsyncIterator[bytes]:
        yield fold_pb2.RangeEntriesResponse(state=STATE).SerializeToString()
        raise TooManyScans("later", retryAfterMs=5)

    store.add("FoldService/RangeEntries", fold_pb2.RangeEntriesRequest, scan, stream=False)
    async with linked(store) as link:
        pages = aiter(link.range_entries("t"))
        assert (await anext(pages)).batch is None
        with pytest.raises(TooManyScans):
            await anext(pages)


@pytest.mark.parametrize("error", [StalePosition("stale", position="70"), NotReady("starting")])
async def test_the_store_s_own_errors_keep_their_classes(error: EddylineError) -> None:
    store = Store(("TopicService/GetTopic", topic_pb2.GetTopicRequest, error))
    async with linked(store) as link:
        with pytest.raises(type(error)) as raised:
            await link.get_topic("t")
    assert (raised.value.message, raised.value.metadata) == (error.message, error.metadata)


async def test_a_store_that_is_not_there_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: every dial is refused
        async with open_channel(f"127.0.0.1:{taken.getsockname()[1]}") as channel:
            link = GrpcLink(channel)
            with pytest.raises(StoreUnreachable):
                await link.get_topic("t")
            with pytest.raises(StoreUnreachable):
                _ = [page async for page in link.range_entries("t")]


async def test_a_store_that_does_not_answer_in_time_is_a_deadline() -> None:
    store = Store()

    async def hang(_request: topic_pb2.GetTopicRequest, _context: object) -> bytes:
        await asyncio.Event().wait()
        return b""

    raw = RawMethod(hang, topic_pb2.GetTopicRequest.FromString)
    store.server.add_raw_methods("eddyline.v1.TopicService", {"GetTopic": raw})
    async with linked(store, timeout_s=0.05) as link:
        with pytest.raises(Deadline):
            await link.get_topic("t")
