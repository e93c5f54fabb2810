"""Records above a channel's limit: one typed error, or a gap in their place; never cut, always named."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.core.errors import Oversize
from eddyline.core.model.source import SourceDefinition
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.core.transport.channel import open_channel
from eddyline.core.transport.status import unwrap
from eddyline.delivery.feed.encode import EncodedFrame, FramePosition, TopicView, item_frame
from eddyline.delivery.feed.oversize import MessageLimit, fit_frames
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import delivery_pb2_grpc, log_pb2
from eddyline.v1 import types_pb2 as types
from tests.support.delivery.role import ServedDelivery, Watch, at, earliest, served_delivery, snapshot, tail
from tests.support.store.simulated import kv_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LARGE = 5 << 20
LARGE_SEQ = 2
KEYS = (b"a", b"large", b"z")
STARTS = {"from the log": earliest("kv"), "from the fold": snapshot("kv"), "as it comes": tail("kv")}


@pytest.fixture(name="cluster")
async def _cluster() -> AsyncIterator[ServedDelivery]:
    async with served_delivery() as cluster:
        await kv_topic(cluster.store)
        yield cluster


async def copy_large(cluster: ServedDelivery) -> None:
    """Append a record of 5 MiB between small ones, each in a batch of its own."""
    await cluster.store.put_source(SourceDefinition("source", "kv", "bucket"))
    lease = await cluster.store.acquire_lease("source", holder="me", lease_ms=5000)
    positions = (b"", b"1", b"2", b"3")
    for key, previous, new in zip(KEYS, positions, positions[1:], strict=False):
        size = LARGE if key == b"large" else 1
        batch = Batch.from_rows([Record(op=Op.PUT, key=key, data=bytes(size))])
        await cluster.store.apply_batch("source", fence=lease.fence, previous=previous, new=new, batch=batch)


@asynccontextmanager
async def watch_by_default(
    cluster: ServedDelivery, wanted: pb.WatchTopic, *, skips: bool = False, metadata_only: bool = False
) -> AsyncIterator[Watch]:
    """Open a watch over a channel with gRPC's default options; the large record is appended once it has caught up."""
    topic = pb.WatchTopic()
    topic.CopyFrom(wanted)
    topic.metadata_only = metadata_only
    request = pb.WatchTopicsRequest(topics=[topic], skip_oversize=skips)
    late = wanted.point == pb.START_POINT_TAIL
    if not late:
        await copy_large(cluster)
    async with (
        grpc.aio.insecure_channel(cluster.address) as channel,
        Watch(delivery_pb2_grpc.DeliveryServiceStub(channel).WatchTopics(request)) as watch,
    ):
        if late:
            await watch.kind("caught_up")
            await copy_large(cluster)
        yield watch


@pytest.mark.parametrize("wanted", STARTS.values(), ids=STARTS.keys())
async def test_a_channel_with_default_options_gets_one_typed_error(
    cluster: ServedDelivery, wanted: pb.WatchTopic
) -> None:
    async with watch_by_default(cluster, wanted) as watch:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            while True:
                await watch.next()
    error = unwrap(refused.value)
    assert isinstance(error, Oversize)
    assert error.metadata["topic"] == "kv"
    assert error.metadata["seq"] == f"{LARGE_SEQ}"
    assert error.metadata["channelOption"] == "grpc.max_receive_message_length"
    assert int(error.metadata["sizeBytes"]) > LARGE > int(error.metadata["limitBytes"]) == 4 << 20
    assert [record.key for frame in watch.frames for record in frame.rows.records] == [b"a"]


@pytest.mark.parametrize("wanted", STARTS.values(), ids=STARTS.keys())
async def test_a_gap_replaces_the_record_on_request(cluster: ServedDelivery, wanted: pb.WatchTopic) -> None:
    async with watch_by_default(cluster, wanted, skips=True) as watch:
        assert [record.key for record in (await watch.until_kind("rows")).rows.records] == [b"a"]
        gap = await watch.kind("gap")
        assert [record.key for record in (await watch.kind("rows")).rows.records] == [b"z"]
    expected = types.Gap(first_seq=LARGE_SEQ, last_seq=LARGE_SEQ, reason=types.GAP_REASON_OVERSIZE)
    assert gap.gap == expected
    assert gap.cursor.seq == (0 if wanted.point == pb.START_POINT_SNAPSHOT else LARGE_SEQ)


async def test_no_snapshot_follows_a_skipped_record(cluster: ServedDelivery) -> None:
    wanted = at("kv", 0)
    wanted.on_gap = log_pb2.GAP_POLICY_HEAL
    async with watch_by_default(cluster, wanted, skips=True) as watch:
        kinds = [(await watch.next()).WhichOneof("frame") for _ in range(4)]
    assert kinds == ["rows", "gap", "rows", "caught_up"]


async def test_a_watch_of_metadata_only_receives_every_record(cluster: ServedDelivery) -> None:
    async with watch_by_default(cluster, earliest("kv"), metadata_only=True) as watch:
        await watch.until_kind("caught_up")
    sizes = [record.data_bytes for frame in watch.frames for record in frame.rows.records]
    assert sizes == [1, LARGE, 1]


@pytest.mark.parametrize("limit", [8 << 20, 64 << 20, (1 << 32) - 1])
async def test_a_caller_with_a_larger_limit_receives_the_whole_record(cluster: ServedDelivery, limit: int) -> None:
    await copy_large(cluster)
    async with open_channel(cluster.address) as channel:
        request = pb.WatchTopicsRequest(topics=[earliest("kv")], message_bytes_max=limit)
        async with Watch(delivery_pb2_grpc.DeliveryServiceStub(channel).WatchTopics(request)) as watch:
            assert [len(data) for data in await watch.data(3)] == [1, LARGE, 1]


async def test_a_limit_below_the_default_of_channels_is_refused(cluster: ServedDelivery) -> None:
    refused = unwrap(await cluster.refusal(tail("kv"), message_bytes_max=(4 << 20) - 1))
    assert (refused.reason, refused.metadata["field"]) == ("INVALID_ARGUMENT", "message_bytes_max")


def test_the_record_is_located_among_others_and_cursors_stay_exact() -> None:
    sizes = (10, 10, 900, 10, 900)
    batch = Batch.from_rows([Record(seq, 1, data=bytes(size)) for seq, size in enumerate(sizes, start=1)])
    place, view, limit = FramePosition("t", 7, 9), TopicView(), MessageLimit(200, skips=True)
    frames = [pb.WatchTopicsResponse.FromString(one.data) for one in fitted_of(batch, place, view, limit)]
    positions = [
        (frame.cursor.seq, [record.seq for record in frame.rows.records] or (frame.gap.first_seq, frame.gap.last_seq))
        for frame in frames
    ]
    assert positions == [(2, [1, 2]), (3, (3, 3)), (4, [4]), (9, (5, 5))]
    assert all(frame.gap.reason == types.GAP_REASON_OVERSIZE for frame in frames if frame.HasField("gap"))
    with pytest.raises(Oversize) as refused:
        fitted_of(batch, place, view, MessageLimit(200))
    assert refused.value.metadata["seq"] == "3"


def test_a_hidden_record_is_not_too_large() -> None:
    gap = Gap(1, 2, GapReason.CAP)
    place, view = FramePosition("t", 7, 2), TopicView()
    frame = item_frame(place, gap, view)
    assert fit_frames(frame, place, gap, view, MessageLimit(10_000)) == (frame,)
    batch = Batch.from_rows([])
    assert fitted_of(batch, place, view, MessageLimit(10)) == ()


def fitted_of(batch: Batch, place: FramePosition, view: TopicView, limit: MessageLimit) -> tuple[EncodedFrame, ...]:
    return fit_frames(item_frame(place, batch, view), place, batch, view, limit)
