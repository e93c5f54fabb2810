"""ExplainWatch: its costs match the stream that follows, and its states match the open ones."""

from __future__ import annotations

from contextlib import AsyncExitStack

import grpc
import pytest

from eddyline.core.errors import PageTokenInvalid
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.record import GapReason
from eddyline.core.runtime.settings import WIRES
from eddyline.core.transport.status import unwrap
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import types_pb2
from tests.support.delivery.role import served_delivery, tail
from tests.support.store.simulated import append, kv_topic, log_topic, rows


def at(topic: str, seq: int, epoch: int = 0) -> pb.WatchTopic:
    return pb.WatchTopic(topic=topic, cursor=types_pb2.Cursor(topic=topic, epoch=epoch, seq=seq))


def watch(*topics: pb.WatchTopic) -> pb.ExplainWatchRequest:
    return pb.ExplainWatchRequest(watch=pb.WatchTopicsRequest(topics=topics))


async def test_cost_equals_the_records_of_the_stream() -> None:
    async with served_delivery() as served:
        await log_topic(served.store)
        await append(served.store, "log", rows(*(f"record-{number}" for number in range(10))))
        (cost,) = (await served.delivery.ExplainWatch(watch(at("log", 4)))).costs
        assert (cost.start.topic, cost.start.seq, cost.head_seq, cost.record_count) == ("log", 4, 10, 6)
        assert not (cost.snapshot or cost.deleted or cost.HasField("gap"))
        info = await served.store.get_topic("log")
        assert cost.record_bytes == info.record_bytes * 6 // 10 > 0
        assert served.role.stats.watch_count == 0
        async with served.watch(at("log", 4)) as stream:
            assert len(await stream.data(6)) == cost.record_count
        (level,) = (await served.delivery.ExplainWatch(watch(tail("log")))).costs
        assert (level.start.seq, level.record_count, level.record_bytes) == (10, 0, 0)


async def test_gap_after_the_start_is_named() -> None:
    async with served_delivery() as served:
        await served.store.create_topic("log", Kind.LOG, TopicConfig(cap_records=3))
        await append(served.store, "log", rows("a", "b", "c"))
        await append(served.store, "log", rows("d", "e"))
        (cost,) = (await served.delivery.ExplainWatch(watch(at("log", 1)))).costs
        assert (cost.gap.first_seq, cost.gap.last_seq, int(cost.gap.reason)) == (2, 2, GapReason.CAP)
        assert cost.record_count == 3
        epoch = (await served.store.get_topic("log")).epoch
        (cost,) = (await served.delivery.ExplainWatch(watch(at("log", 4, epoch + 7)))).costs
        assert (int(cost.gap.reason), cost.gap.old_epoch, cost.gap.new_epoch) == (GapReason.RECREATED, epoch + 7, epoch)


async def test_snapshot_and_a_deleted_topic_are_marked() -> None:
    async with served_delivery() as served:
        await kv_topic(served.store)
        await log_topic(served.store, name="gone")
        epoch = (await served.store.get_topic("gone")).epoch
        await served.store.delete_topic("gone")
        snapshot = pb.WatchTopic(topic="kv", point=pb.START_POINT_SNAPSHOT)
        first, second = (await served.delivery.ExplainWatch(watch(snapshot, at("gone", 0, epoch)))).costs
        assert (first.start.topic, first.snapshot, first.record_count) == ("kv", True, 0)
        assert (second.start.topic, second.deleted) == ("gone", True)


async def test_open_streams_have_their_state_and_next_step() -> None:
    async with served_delivery() as served:
        await log_topic(served.store)
        async with served.watch(tail("log")) as stream:
            await stream.until_kind("caught_up")
            await append(served.store, "log", rows("a", "b"))
            assert await stream.data(2) == [b"a", b"b"]
            served.clock.advance(2.0)
            answer = await served.delivery.ExplainWatch(pb.ExplainWatchRequest())
            (open_watch,) = answer.watches
            (stand,) = open_watch.topics
            assert (open_watch.watch_id, open_watch.topic_count, open_watch.caught_up, open_watch.slow) == (
                1,
                1,
                True,
                False,
            )
            assert open_watch.peer.startswith("ipv4:127.0.0.1:")
            assert (open_watch.open_ms, open_watch.sent_count) == (2000, 2)
            assert open_watch.last_send_ms <= 2000
            assert (stand.cursor.topic, stand.cursor.seq, stand.head_seq) == ("log", 2, 2)
            assert stand.standing == pb.WATCH_STANDING_LEVEL
            assert stand.next
        assert not (await served.delivery.ExplainWatch(pb.ExplainWatchRequest())).watches


async def test_stalled_stream_has_the_reason_of_its_wait() -> None:
    async with served_delivery() as served:
        await log_topic(served.store)
        async with served.watch_narrowly(tail("log")) as stream:
            await stream.until_kind("caught_up")
            big = "x" * 60_000
            for _ in range(20):
                await append(served.store, "log", rows(big))

            async def open_watch() -> pb.OpenWatch:
                return (await served.delivery.ExplainWatch(pb.ExplainWatchRequest(topic="log"))).watches[0]

            one = await open_watch()
            for _ in range(2000):
                if one.queued_bytes and one.topics[0].head_seq == 20:
                    break
                served.clock.advance(0.01)
                one = await open_watch()
            assert one.queued_bytes > 0
            assert one.topics[0].cursor.seq < one.topics[0].head_seq == 20
            assert one.topics[0].standing in (pb.WATCH_STANDING_SENDING, pb.WATCH_STANDING_WAITING_TURN)


@pytest.mark.parametrize("wire", WIRES)
async def test_reader_that_stands_still_is_seen_though_its_stream_is_level(wire: str) -> None:
    async with served_delivery(wire=wire) as served:
        await log_topic(served.store)
        async with served.watch_narrowly(tail("log")) as stream:
            await stream.until_kind("caught_up")
            # gRPC's core gives back the window of a first message before its program reads it.
            for _ in range(2):
                await append(served.store, "log", rows("x" * 60_000))

            async def open_watch() -> pb.OpenWatch:
                served.clock.advance(0.01)
                return (await served.delivery.ExplainWatch(pb.ExplainWatchRequest(topic="log"))).watches[0]

            one = await open_watch()
            while one.sent_count < 2 or one.queued_bytes:
                one = await open_watch()
            assert one.topics[0].standing == pb.WATCH_STANDING_LEVEL
            assert one.HasField("backlog") is (wire == "own")
            if wire == "grpc":
                return
            while one.backlog.unread_bytes < 40_000:
                one = await open_watch()
            later = await open_watch()
            while later.backlog.unread_ms <= one.backlog.unread_ms + 1:
                later = await open_watch()
            assert later.topics[0].standing == pb.WATCH_STANDING_LEVEL
            await append(served.store, "log", rows("x" * 60_000))
            while not one.backlog.queued_bytes:
                one = await open_watch()
            assert len(await stream.data(3)) == 3
            while one.backlog.queued_bytes:
                one = await open_watch()
            assert one.backlog.queued_ms == 0


async def test_streams_are_paged_by_the_requested_topic() -> None:
    async with served_delivery() as served:
        await log_topic(served.store)
        await log_topic(served.store, name="other")
        async with AsyncExitStack() as streams:
            for topic in ("log", "other", "log"):
                await (await streams.enter_async_context(served.watch(tail(topic)))).until_kind("caught_up")
            first = await served.delivery.ExplainWatch(pb.ExplainWatchRequest(topic="log", page_size=1))
            assert [open_watch.watch_id for open_watch in first.watches] == [1]
            second = await served.delivery.ExplainWatch(
                pb.ExplainWatchRequest(topic="log", page_size=1, page_token=first.next_page_token)
            )
            assert ([open_watch.watch_id for open_watch in second.watches], second.next_page_token) == ([3], "")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await served.delivery.ExplainWatch(pb.ExplainWatchRequest(page_token=first.next_page_token))
            assert isinstance(unwrap(refused.value), PageTokenInvalid)


async def test_the_cost_of_an_invalid_watch_is_refused() -> None:
    async with served_delivery() as served:
        await log_topic(served.store)
        for request in (watch(at("log", 5)), watch(tail("none")), watch()):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await served.delivery.ExplainWatch(request)
            assert refused.value.code() is not grpc.StatusCode.INTERNAL
