"""Watches under failures: slow readers, an unreachable store, deleted topics, invalid requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.core.transport.status import unwrap
from eddyline.delivery.resume_token import Cursor, Resume, ResumeState
from eddyline.delivery.watch.request import StartPoint, TopicRequest, WatchRequest
from eddyline.v1 import cluster_pb2, types_pb2
from eddyline.v1 import delivery_pb2 as pb
from tests.support.delivery.role import ServedDelivery, at, earliest, served_delivery, snapshot, tail
from tests.support.hang import HANG_S
from tests.support.store.simulated import append, kv_topic, log_topic, rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(name="cluster")
async def _cluster() -> AsyncIterator[ServedDelivery]:
    async with served_delivery(watches_max=8) as cluster:
        yield cluster


async def test_slow_subscriber_falls_back_to_the_log_without_loss_while_others_continue() -> None:
    async with served_delivery(topic_buffer_bytes=200_000) as cluster:
        await log_topic(cluster.store)
        async with cluster.watch_narrowly(tail("log")) as slow, cluster.watch(tail("log")) as fast:
            await slow.kind("caught_up")
            await fast.kind("caught_up")
            for number in range(300):
                await append(cluster.store, "log", rows(f"{number} " + "x" * 8000))
                assert (await fast.data(1))[0].startswith(b"%d " % number)
            assert cluster.role.budget.nbytes <= 200_000
            reads = cluster.wire.read_count
            got = await slow.data(300)
            assert [int(data.split()[0]) for data in got] == list(range(300))
            assert cluster.wire.read_count > reads, "it had fallen behind the ring"
            reads = cluster.wire.read_count
            await append(cluster.store, "log", rows("level again"))
            assert await slow.data(1) == [b"level again"]
            assert cluster.wire.read_count == reads, "it joined the ring again"
        assert cluster.wire.follow_count == 1


async def test_heartbeat_comes_after_silence_with_a_token(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    await append(cluster.store, "log", rows("a"))
    async with cluster.watch(earliest("log"), heartbeat_ms=1000) as watch:
        await watch.until_kind("caught_up")
        for _ in range(3):
            cluster.clock.advance(1.0)
            frame = await watch.kind("heartbeat")
            assert frame.heartbeat.ts_ms == cluster.clock.now_ms()
    await append(cluster.store, "log", rows("next"))
    async with cluster.watch(tail("log"), resume_token=frame.resume_token) as watch:
        assert await watch.data(1) == [b"next"]


async def test_token_stays_recent_on_a_busy_stream(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log"), heartbeat_ms=1000) as watch:
        await watch.kind("caught_up")
        for number in range(50):
            cluster.clock.advance(0.2)
            await append(cluster.store, "log", rows(f"{number}"))
            await watch.until_kind("rows")
        kinds = [frame.WhichOneof("frame") for frame in watch.frames]
        assert kinds.count("heartbeat") == 10
        # Between steps: at most a heartbeat's records are behind a token.
        last = len(kinds) - 1 - kinds[::-1].index("heartbeat")
        assert kinds[last:].count("rows") <= 5
        token, seen = watch.token, kinds[:last].count("rows")
    async with cluster.watch(tail("log"), resume_token=token) as watch:
        assert await watch.data(50 - seen) == [b"%d" % number for number in range(seen, 50)]


async def test_reader_slower_than_its_heartbeats_makes_progress(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    await append(cluster.store, "log", rows("a"))
    request = WatchRequest((TopicRequest("log", StartPoint.EARLIEST),), heartbeat_s=0.1)
    async with cluster.role.watches.open(request) as subscriber, asyncio.timeout(HANG_S):
        frames = subscriber.frames()
        kinds: list[str | None] = []
        while "rows" not in kinds or "caught_up" not in kinds:
            kinds.append(pb.WatchTopicsResponse.FromString(await anext(frames)).WhichOneof("frame"))
            cluster.clock.advance(1.0)
            await asyncio.sleep(0)
            assert len(kinds) < 10
        await frames.aclose()


async def test_slowly_sent_heartbeat_does_not_suppress_the_next(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    request = WatchRequest((TopicRequest("log", StartPoint.TAIL),), heartbeat_s=1.0)
    async with cluster.role.watches.open(request) as subscriber, asyncio.timeout(HANG_S):
        frames = subscriber.frames()
        assert pb.WatchTopicsResponse.FromString(await anext(frames)).HasField("caught_up")
        for _ in range(3):
            cluster.clock.advance(1.1)
            assert pb.WatchTopicsResponse.FromString(await anext(frames)).HasField("heartbeat")
        await frames.aclose()


async def test_idle_streams_share_one_timer(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    before = cluster.clock.pending
    watches = [cluster.watch(tail("log")) for _ in range(5)]
    for watch in watches:
        await watch.kind("caught_up")
    assert cluster.clock.pending <= before + 1
    for watch in watches:
        watch.call.cancel()


async def test_broken_follow_continues_at_its_position(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as watch:
        await watch.kind("caught_up")
        for number in range(10):
            await append(cluster.store, "log", rows(f"{number}"))
            if number % 3 == 2:
                cluster.wire.cut_follow()
                await append(cluster.store, "log", rows(f"{number} too"))
                await cluster.until(cluster.role.tails.down.is_set)
                await cluster.until(cluster.role.tails.up.is_set, passing_s=0.01)
        got = await watch.data(13)
        assert len(set(got)) == 13
        seqs = [record.seq for frame in watch.frames for record in frame.rows.records]
        assert seqs == list(range(1, 14))
    assert cluster.wire.follow_count == 4


async def test_unreachable_store_leaves_streams_open_refuses_new_ones_and_is_reported(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log"), heartbeat_ms=100) as watch:
        await watch.kind("caught_up")
        assert await cluster.ready()
        cluster.wire.cut()
        await cluster.until(cluster.role.tails.down.is_set)
        assert not await cluster.ready()
        status = await cluster.cluster.GetStatus(cluster_pb2.GetStatusRequest())
        assert (status.ready, status.reason) == (False, "STORE_UNREACHABLE")
        async with asyncio.TaskGroup() as tasks:
            for wanted in (tail("log"), tail("other")):
                refusal = tasks.create_task(cluster.refusal(wanted))
                await cluster.until(refusal.done, passing_s=0.01)
                assert unwrap(refusal.result()).reason == "STORE_UNREACHABLE"
        await watch.kind("heartbeat")
        await append(cluster.store, "log", rows("meanwhile"))
        cluster.wire.mend()
        await cluster.until(cluster.role.tails.up.is_set, passing_s=0.01)
        while not (frame := await watch.next()).HasField("rows"):
            assert frame.HasField("heartbeat")
        assert frame.rows.records[0].data == b"meanwhile"
        assert await cluster.ready()
        assert len(cluster.role.tails) == 1, "what was refused left nothing behind"


async def test_stream_opened_while_the_store_restarts_waits_briefly(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    cluster.wire.cut()
    await cluster.until(cluster.role.tails.down.is_set)
    async with cluster.watch(tail("log")) as watch:
        await cluster.until(lambda: cluster.role.stats.watch_count == 1)
        cluster.wire.mend()
        await cluster.until(cluster.role.tails.up.is_set, passing_s=0.001)
        await watch.kind("caught_up")


async def test_subscriber_below_the_ring_continues_when_the_store_is_back() -> None:
    async with served_delivery(topic_buffer_bytes=0) as cluster:
        await log_topic(cluster.store)
        async with cluster.watch(tail("log"), heartbeat_ms=60_000) as watch:
            await watch.kind("caught_up")
            cluster.wire.reads_open.clear()
            await append(cluster.store, "log", rows("a"))
            await cluster.until(lambda: cluster.role.watches is not None)
            cluster.wire.cut()
            cluster.wire.reads_open.set()
            await cluster.until(cluster.role.tails.down.is_set)
            cluster.wire.mend()
            await cluster.until(cluster.role.tails.up.is_set, passing_s=0.01)
            cluster.clock.advance(3)
            assert await watch.data(1) == [b"a"]


async def test_deleted_topic_is_reported_after_its_last_record_and_the_others_continue(cluster: ServedDelivery) -> None:
    epoch = await log_topic(cluster.store, "one")
    await log_topic(cluster.store, "two")
    async with cluster.watch(tail("one"), tail("two")) as watch:
        await watch.kind("caught_up")
        await append(cluster.store, "one", rows("last"))
        await cluster.store.delete_topic("one")
        assert await watch.data(1) == [b"last"]
        frame = await watch.kind("topic_deleted")
        assert (frame.topic, frame.topic_deleted.epoch, frame.cursor.seq) == ("one", epoch, 1)
        await append(cluster.store, "two", rows("still here"))
        assert await watch.data(1) == [b"still here"]
        cluster.clock.advance(11)
        token = (await watch.kind("heartbeat")).resume_token
    async with cluster.watch(tail("one"), tail("two"), resume_token=token) as watch:
        kinds = [(await watch.next()).WhichOneof("frame") for _ in range(3)]
        assert kinds == ["heartbeat", "topic_deleted", "caught_up"]
        await append(cluster.store, "two", rows("again"))
        assert await watch.data(1) == [b"again"]


async def test_same_request_with_the_newest_token_continues_without_a_deleted_topic(cluster: ServedDelivery) -> None:
    epoch = await log_topic(cluster.store, "one")
    await log_topic(cluster.store, "two")
    request, token = (tail("one"), tail("two")), b""
    for turn in range(4):
        async with cluster.watch(*request, resume_token=token) as watch:
            await watch.until_kind("caught_up")
            gone = [frame for frame in watch.frames if frame.WhichOneof("frame") == "topic_deleted"]
            assert [(frame.topic, frame.topic_deleted.epoch) for frame in gone] == [("one", epoch)] * (turn > 1)
            got = [record.data for frame in watch.frames for record in frame.rows.records]
            assert got == [b"before %d" % turn] * (turn > 0)
            if turn == 1:
                await cluster.store.delete_topic("one")
                await watch.kind("topic_deleted")
                cluster.clock.advance(11)
                await watch.kind("heartbeat")
            token = watch.token
        await append(cluster.store, "two", rows(f"before {turn + 1}"))
    new = await log_topic(cluster.store, "one")
    await append(cluster.store, "one", rows("of the new one"))
    async with cluster.watch(*request, resume_token=token) as watch:
        await watch.until_kind("caught_up")
    (gap,) = [frame.gap for frame in watch.frames if frame.WhichOneof("frame") == "gap"]
    assert gap == types_pb2.Gap(reason=types_pb2.GAP_REASON_RECREATED, old_epoch=epoch, new_epoch=new)
    assert {record.data for frame in watch.frames for record in frame.rows.records} == {b"before 4", b"of the new one"}


async def test_request_without_some_topics_of_the_token_continues_with_the_others(cluster: ServedDelivery) -> None:
    for name in ("one", "two", "three"):
        await log_topic(cluster.store, name)
        await append(cluster.store, name, rows("seen"))
    async with cluster.watch(earliest("one"), tail("two"), tail("three")) as watch:
        token = (await watch.until_kind("caught_up")).resume_token
    await cluster.store.delete_topic("one")
    for name in ("two", "three"):
        await append(cluster.store, name, rows(f"of {name}"))
    async with cluster.watch(tail("two"), resume_token=token) as watch:
        assert await watch.data(1) == [b"of two"]
        token = (await watch.until_kind("caught_up")).resume_token
    await append(cluster.store, "two", rows("next"))
    async with cluster.watch(earliest("three"), tail("two"), resume_token=token) as watch:
        await watch.until_kind("caught_up")
    got = [(frame.topic, record.data) for frame in watch.frames for record in frame.rows.records]
    assert sorted(got) == [("three", b"of three"), ("three", b"seen"), ("two", b"next")]
    error = await cluster.refusal(tail("one"), tail("two"), resume_token=token)
    assert unwrap(error).reason == "TOPIC_NOT_FOUND", "the token does not know that there was one"


async def test_damaged_token_is_refused(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as watch:
        token = (await watch.kind("caught_up")).resume_token
    for at_byte in range(len(token)):
        damaged = token[:at_byte] + bytes([token[at_byte] ^ 8]) + token[at_byte + 1 :]
        assert unwrap(await cluster.refusal(tail("log"), resume_token=damaged)).reason == "RESUME_TOKEN_INVALID"


async def test_topic_deleted_without_watches_leaves_no_state(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as watch:
        await watch.kind("caught_up")
        await append(cluster.store, "log", rows("x" * 10_000))
        await watch.kind("rows")
    await cluster.until(lambda: cluster.role.stats.watch_count == 0)
    assert cluster.role.budget.nbytes > 10_000
    await cluster.store.delete_topic("log")
    await cluster.until(lambda: len(cluster.role.tails) == 0)
    assert cluster.role.budget.nbytes == 0


async def test_stream_ends_when_all_its_topics_are_deleted(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as watch:
        await watch.kind("caught_up")
        await cluster.store.delete_topic("log")
        await watch.kind("topic_deleted")
        with pytest.raises(StopAsyncIteration):
            await watch.next()


async def test_topic_recreated_while_the_stream_was_broken_is_a_gap(cluster: ServedDelivery) -> None:
    old = await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as watch:
        await watch.kind("caught_up")
        await append(cluster.store, "log", rows("old"))
        assert await watch.data(1) == [b"old"]
        cluster.wire.cut()
        await cluster.until(cluster.role.tails.down.is_set)
        await cluster.store.delete_topic("log")
        new = await log_topic(cluster.store)
        await append(cluster.store, "log", rows("new", "newer"))
        cluster.wire.mend()
        await cluster.until(cluster.role.tails.up.is_set, passing_s=0.01)
        frame = await watch.kind("gap")
        assert frame.gap == types_pb2.Gap(reason=types_pb2.GAP_REASON_RECREATED, old_epoch=old, new_epoch=new)
        assert frame.cursor == types_pb2.Cursor(topic="log", epoch=new, seq=0)
        assert await watch.data(2) == [b"new", b"newer"]


async def test_cursor_of_an_older_topic_of_the_name_is_a_gap(cluster: ServedDelivery) -> None:
    old = await log_topic(cluster.store)
    await append(cluster.store, "log", rows("old"))
    await cluster.store.delete_topic("log")
    new = await log_topic(cluster.store)
    await append(cluster.store, "log", rows("a", "b", "c"))
    async with cluster.watch(at("log", 1, old)) as watch:
        frame = await watch.kind("gap")
        assert (frame.gap.old_epoch, frame.gap.new_epoch) == (old, new)
        assert await watch.data(3) == [b"a", b"b", b"c"]
        await watch.kind("caught_up")


async def test_token_before_the_gap_of_a_recreated_topic_is_not_behind_the_cursor(cluster: ServedDelivery) -> None:
    old = await log_topic(cluster.store)
    await append(cluster.store, "log", rows("1", "2", "3", "4"))
    await cluster.store.delete_topic("log")
    new = await log_topic(cluster.store)
    request = WatchRequest((TopicRequest("log", Cursor("log", old, 4)),), heartbeat_s=1.0)
    async with cluster.role.watches.open(request) as subscriber, asyncio.timeout(HANG_S):
        (topic,) = subscriber.topics
        assert topic.resume == Resume(Cursor("log", old, 4), ResumeState.LOG)
        frames = subscriber.frames()
        assert pb.WatchTopicsResponse.FromString(await anext(frames)).gap.reason == types_pb2.GAP_REASON_RECREATED
        await frames.aclose()
        assert topic.resume == Resume(Cursor("log", new, 0), ResumeState.LOG)


async def test_newer_of_token_and_cursor_wins_by_topic(cluster: ServedDelivery) -> None:
    epochs = {name: await log_topic(cluster.store, name) for name in ("one", "two")}
    for name in epochs:
        await append(cluster.store, name, rows("1", "2"))
    async with cluster.watch(earliest("one"), earliest("two")) as watch:
        token = (await watch.until_kind("caught_up")).resume_token
    for name in epochs:
        await append(cluster.store, name, rows("3", "4"))
    wanted = at("one", 3, epochs["one"]), at("two", 1, epochs["two"])
    async with cluster.watch(*wanted, resume_token=token) as watch:
        await watch.until_kind("caught_up")
        got = {f.topic: [r.data for r in f.rows.records] for f in watch.frames if f.HasField("rows")}
        assert got == {"one": [b"4"], "two": [b"3", b"4"]}
    # in any order of the topics
    async with cluster.watch(tail("two"), tail("one"), resume_token=token) as watch:
        await watch.until_kind("caught_up")
        got = {f.topic: [r.data for r in f.rows.records] for f in watch.frames if f.HasField("rows")}
        assert got == {"one": [b"3", b"4"], "two": [b"3", b"4"]}


async def test_too_many_streams_are_refused_until_one_ends(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    watches = [cluster.watch(tail("log")) for _ in range(8)]
    for watch in watches:
        await watch.kind("caught_up")
    error = await cluster.refusal(tail("log"))
    assert (error.code(), unwrap(error).reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_WATCHES")
    watches.pop().call.cancel()
    await cluster.until(lambda: cluster.role.stats.watch_count == 7)
    async with cluster.watch(tail("log")) as again:
        await again.kind("caught_up")
    for watch in watches:
        watch.call.cancel()


async def test_status_has_the_counters(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as watch:
        await watch.kind("caught_up")
        await append(cluster.store, "log", rows("a", "b"))
        await watch.data(2)
        status = await cluster.cluster.GetStatus(cluster_pb2.GetStatusRequest())
        stats = status.delivery
        assert (status.ready, status.role) == (True, cluster_pb2.ROLE_DELIVERY)
        assert (stats.watch_count, stats.topic_count, stats.delivered_count) == (1, 1, 2)
        assert stats.buffered_bytes > 0
        pressure = stats.pressure
        assert (pressure.step, pressure.reason) == (cluster_pb2.PRESSURE_STEP_REST, "")
        assert list(pressure.ready_topic_counts) == [0] * 5


MANY = [tail(f"t{number}") for number in range(1001)]


@pytest.mark.parametrize(
    ("topics", "options", "reason"),
    [
        ([], {}, "INVALID_ARGUMENT"),
        (MANY, {}, "INVALID_ARGUMENT"),
        ([tail("log"), at("log", 0)], {}, "INVALID_ARGUMENT"),
        ([tail("/etc/passwd")], {}, "INVALID_NAME"),
        ([tail("")], {}, "INVALID_NAME"),
        ([tail("absent")], {}, "TOPIC_NOT_FOUND"),
        ([tail("log"), at("absent", 3)], {}, "TOPIC_NOT_FOUND"),
        ([snapshot("log")], {}, "NOT_KV"),
        ([at("log", 2)], {}, "CURSOR_AHEAD"),
        ([pb.WatchTopic(topic="log", cursor=types_pb2.Cursor(topic="kv"))], {}, "INVALID_ARGUMENT"),
        ([pb.WatchTopic(topic="log", point=9)], {}, "INVALID_ARGUMENT"),  # type: ignore[arg-type]  # an open enum
        ([tail("log", b"x" * 1025)], {}, "INVALID_ARGUMENT"),
        ([tail("log", *[b"%d" % number for number in range(1001)])], {}, "INVALID_ARGUMENT"),
        ([tail("log")], {"heartbeat_ms": 99}, "INVALID_ARGUMENT"),
        ([tail("log")], {"heartbeat_ms": 60_001}, "INVALID_ARGUMENT"),
        ([tail("log")], {"format": 7}, "INVALID_ARGUMENT"),
        ([tail("log")], {"resume_token": b"nonsense"}, "RESUME_TOKEN_INVALID"),
        ([tail("log")], {"resume_token": b"\x01" + bytes(24) + b"\x09"}, "RESUME_TOKEN_INVALID"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_bad_request_is_refused_with_its_reason(
    cluster: ServedDelivery, topics: list[pb.WatchTopic], options: dict[str, object], reason: str
) -> None:
    await log_topic(cluster.store)
    await kv_topic(cluster.store)
    await append(cluster.store, "log", rows("a"))
    error = await cluster.refusal(*topics, **options)
    assert unwrap(error).reason == reason
    assert cluster.role.stats.watch_count == 0


@pytest.mark.parametrize(
    ("topics", "options", "metadata"),
    [
        (MANY, {}, {"count": "1001", "limit": "1000"}),
        ([tail("log"), at("log", 0)], {}, {"topic": "log"}),
        ([tail("/etc/passwd")], {}, {"name": "/etc/passwd"}),
        ([tail("absent")], {}, {"topic": "absent"}),
        ([at("log", 2)], {}, {"topic": "log", "headSeq": "1", "cursorSeq": "2"}),
        ([pb.WatchTopic(topic="log", cursor=types_pb2.Cursor(topic="kv"))], {}, {"topic": "log", "cursorTopic": "kv"}),
        ([pb.WatchTopic(topic="log", point=9)], {}, {"point": "9"}),  # type: ignore[arg-type]  # an open enum
        ([tail("log", b"x" * 1025)], {}, {"sizeBytes": "1025", "limitBytes": "1024"}),
        ([tail("log", *[b"%d" % number for number in range(1001)])], {}, {"count": "1001", "limit": "1000"}),
        ([tail("log")], {"heartbeat_ms": 99}, {"heartbeatMs": "99"}),
        ([tail("log")], {"format": 7}, {"format": "7"}),
        ([tail("log")], {"resume_token": b"\x09" + bytes(25)}, {"version": "9"}),
    ],
    ids=lambda value: "",
)
async def test_refusal_has_its_details_in_metadata(
    cluster: ServedDelivery, topics: list[pb.WatchTopic], options: dict[str, object], metadata: dict[str, str]
) -> None:
    await log_topic(cluster.store)
    await append(cluster.store, "log", rows("a"))
    error = unwrap(await cluster.refusal(*topics, **options))
    assert metadata.items() <= error.metadata.items()


async def test_token_of_other_filters_is_a_mismatch(cluster: ServedDelivery) -> None:
    await kv_topic(cluster.store)
    async with cluster.watch(tail("kv", b"a")) as watch:
        token = (await watch.kind("caught_up")).resume_token
    error = await cluster.refusal(tail("kv", b"b"), resume_token=token)
    assert (error.code(), unwrap(error).reason) == (grpc.StatusCode.INVALID_ARGUMENT, "RESUME_TOKEN_MISMATCH")
    assert unwrap(error).metadata["topic"] == "kv"


async def test_token_of_other_topics_only_is_a_mismatch(cluster: ServedDelivery) -> None:
    await kv_topic(cluster.store)
    await log_topic(cluster.store)
    async with cluster.watch(tail("kv")) as watch:
        token = (await watch.kind("caught_up")).resume_token
    assert unwrap(await cluster.refusal(tail("log"), resume_token=token)).reason == "RESUME_TOKEN_MISMATCH"
