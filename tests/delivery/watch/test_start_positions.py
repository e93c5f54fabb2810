"""Starts of a topic: at a time, at a revision, never before the requested one; all topics of a stream start, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.core.transport.status import unwrap
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import types_pb2 as types
from tests.support.delivery.role import ServedDelivery, at, earliest, served_delivery, snapshot, tail
from tests.support.store.simulated import append, kv_topic, log_topic, rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REVISIONS = [5, 9, 10, 20, 21, 22, 40]


@pytest.fixture(name="cluster")
async def _cluster() -> AsyncIterator[ServedDelivery]:
    async with served_delivery() as cluster:
        yield cluster


async def seqs_until_level(cluster: ServedDelivery, wanted: pb.WatchTopic) -> list[int]:
    """Return the frames up to caught_up."""
    async with cluster.watch(wanted) as watch:
        await watch.until_kind("caught_up")
        return [record.seq for frame in watch.frames for record in frame.rows.records]


async def copied(cluster: ServedDelivery) -> None:
    """Make a topic that a source fills, with gaps between its revisions and a gap record among them."""
    await kv_topic(cluster.store)
    await cluster.store.put_source(SourceDefinition("source", "kv", "bucket"))
    lease = await cluster.store.acquire_lease("source", holder="me", lease_ms=5000)
    lost = Gap(0, 0, GapReason.SOURCE_GAP, source_identity=b"id", source_first=11, source_last=19)
    position = b""
    for revision in REVISIONS:
        records = [Record(op=Op.PUT, key=b"k", data=b"x", version=revision.to_bytes(8, "big"))]
        if revision == 20:
            records.insert(0, Record(op=Op.GAP, data=encode_gap(lost)))
        new = b"%d" % revision
        await cluster.store.apply_batch(
            "source", fence=lease.fence, previous=position, new=new, batch=Batch.from_rows(records)
        )
        position = new


@pytest.mark.parametrize(
    ("revision", "seqs"),
    [
        (1, [1, 2, 3, 5, 6, 7, 8]),
        (5, [1, 2, 3, 5, 6, 7, 8]),
        (6, [2, 3, 5, 6, 7, 8]),
        (9, [2, 3, 5, 6, 7, 8]),
        (11, [5, 6, 7, 8]),
        (20, [5, 6, 7, 8]),
        (22, [7, 8]),
        (23, [8]),
        (40, [8]),
        (41, []),
    ],
)
async def test_revision_starts_at_the_first_record_of_it_or_a_later_one(
    cluster: ServedDelivery, revision: int, seqs: list[int]
) -> None:
    await copied(cluster)
    assert await seqs_until_level(cluster, pb.WatchTopic(topic="kv", revision=revision)) == seqs


async def test_revision_past_the_newest_is_refused_and_never_older(cluster: ServedDelivery) -> None:
    await copied(cluster)
    error = unwrap(await cluster.refusal(pb.WatchTopic(topic="kv", revision=42)))
    assert (error.reason, error.metadata["newestRevision"]) == ("CURSOR_AHEAD", "40")
    await log_topic(cluster.store)
    assert unwrap(await cluster.refusal(pb.WatchTopic(topic="log", revision=2))).reason == "CURSOR_AHEAD"
    assert await seqs_until_level(cluster, pb.WatchTopic(topic="log", revision=1)) == []


async def two_streams(cluster: ServedDelivery, old: list[int], new: list[int]) -> int:
    """Make a log of a stream and of its recreated successor; return the seq of the gap between them."""
    await log_topic(cluster.store)
    await cluster.store.put_source(SourceDefinition("source", "log", "", stream="stream"))
    lease = await cluster.store.acquire_lease("source", holder="me", lease_ms=5000)
    unknown = Gap(0, 0, GapReason.SOURCE_GAP, source_identity=b"id", source_first=max(old) + 1)
    position = b""
    for number, revision in enumerate([*old, 0, *new]):
        record = Record(data=b"x", key=b"k", version=revision.to_bytes(8, "big"))
        if not revision:
            record = Record(op=Op.GAP, data=encode_gap(unknown))
        place = b"%d" % (number + 1)
        await cluster.store.apply_batch(
            "source", fence=lease.fence, previous=position, new=place, batch=Batch.from_rows([record])
        )
        position = place
    return len(old) + 1


@pytest.mark.parametrize("revision", [1, 2, 3, 7, 8, 20, 21])
async def test_a_revision_refers_to_the_newest_of_several_streams(cluster: ServedDelivery, revision: int) -> None:
    new = list(range(1, 21))
    gap_seq = await two_streams(cluster, list(range(1, 201)), new)
    expected = [gap_seq + number for number in new if number >= revision]
    async with cluster.watch(pb.WatchTopic(topic="log", revision=revision)) as watch:
        await watch.until_kind("caught_up")
        assert [record.seq for frame in watch.frames for record in frame.rows.records] == expected
        gaps = [frame.gap.seq for frame in watch.frames if frame.HasField("gap")]
    assert gaps == ([gap_seq] if revision == 1 else [])


async def test_a_revision_of_the_old_stream_that_the_newest_has_not_reached_is_refused(cluster: ServedDelivery) -> None:
    await two_streams(cluster, list(range(1, 201)), [1, 2, 3])
    for revision in (5, 150, 201):
        error = unwrap(await cluster.refusal(pb.WatchTopic(topic="log", revision=revision)))
        assert (error.reason, error.metadata["newestRevision"]) == ("CURSOR_AHEAD", "3")


async def test_a_newest_stream_without_a_record_yet_begins_after_its_gap(cluster: ServedDelivery) -> None:
    gap_seq = await two_streams(cluster, [7, 8, 9], [])
    async with cluster.watch(pb.WatchTopic(topic="log", revision=1)) as watch:
        assert (await watch.kind("gap")).gap.seq == gap_seq
        await watch.kind("caught_up")
    assert unwrap(await cluster.refusal(pb.WatchTopic(topic="log", revision=9))).reason == "CURSOR_AHEAD"


async def test_revision_of_a_topic_without_source_is_its_seq(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    for number in range(9):
        await append(cluster.store, "log", rows(f"{number}"))
    for revision in range(1, 11):
        wanted = pb.WatchTopic(topic="log", revision=revision)
        assert await seqs_until_level(cluster, wanted) == list(range(revision, 10))


@pytest.mark.parametrize("wanted", [{"revision": 2}, {"ts_ms": 1}], ids=["revision", "time"])
async def test_loss_before_the_first_live_record_is_a_gap(cluster: ServedDelivery, wanted: dict[str, int]) -> None:
    await cluster.store.create_topic("log", Kind.LOG, TopicConfig(cap_records=2))
    for number in range(5):
        await append(cluster.store, "log", rows(f"{number}"))
    async with cluster.watch(pb.WatchTopic(topic="log", **wanted)) as watch:  # type: ignore[arg-type]
        gap = await watch.kind("gap")
        assert (gap.gap.reason, gap.gap.last_seq) == (types.GAP_REASON_CAP, 3)
        assert await watch.data(2) == [b"3", b"4"]


async def test_position_above_the_first_live_record_has_no_gap(cluster: ServedDelivery) -> None:
    await cluster.store.create_topic("log", Kind.LOG, TopicConfig(cap_records=2))
    for number in range(5):
        await append(cluster.store, "log", rows(f"{number}"))
    async with cluster.watch(pb.WatchTopic(topic="log", revision=5)) as watch:
        assert await watch.data(1) == [b"4"]


async def test_time_is_the_commit_time_and_a_future_one_is_the_tail(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    times: list[int] = []
    for number in range(5):
        cluster.clock.advance(1.0)
        times.append(cluster.clock.now_ms())
        await append(cluster.store, "log", rows(f"{number}"))
    for number, ts_ms in enumerate(times):
        for start_ms in (ts_ms, ts_ms - 1):
            wanted = pb.WatchTopic(topic="log", ts_ms=start_ms)
            assert await seqs_until_level(cluster, wanted) == list(range(number + 1, 6))
    async with cluster.watch(pb.WatchTopic(topic="log", ts_ms=times[-1] + 1)) as watch:
        await watch.kind("caught_up")
        await append(cluster.store, "log", rows("live"))
        assert await watch.data(1) == [b"live"]


async def test_time_is_looked_up_once_and_a_resume_continues_from_the_position(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    await append(cluster.store, "log", rows("0", "1"))
    wanted = pb.WatchTopic(topic="log", ts_ms=0)
    async with cluster.watch(wanted) as watch:
        token = (await watch.until_kind("caught_up")).resume_token
    async with cluster.watch(wanted, resume_token=token) as watch:
        await watch.kind("caught_up")
        await append(cluster.store, "log", rows("2"))
        assert await watch.data(1) == [b"2"]


async def test_cursor_above_the_head_is_refused_and_one_above_the_ring_waits(cluster: ServedDelivery) -> None:
    epoch = await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as first:
        await first.kind("caught_up")
        cluster.wire.cut_follow()  # from here on the replica is behind the store, until it follows it again
        for number in range(5):
            await append(cluster.store, "log", rows(f"{number}"))
        error = await cluster.refusal(at("log", 6, epoch))
        assert (error.code(), unwrap(error).reason) == (grpc.StatusCode.OUT_OF_RANGE, "CURSOR_AHEAD")
        async with cluster.watch(at("log", 5, epoch)) as watch:
            await watch.kind("caught_up")
            await cluster.until(cluster.role.tails.up.is_set, passing_s=0.01)
            await append(cluster.store, "log", rows("5"))
            assert await watch.data(1) == [b"5"], "nothing below the cursor"
            assert await first.data(6) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (tail("absent"), "TOPIC_NOT_FOUND"),
        (snapshot("log-5"), "NOT_KV"),
        (at("log-5", 9), "CURSOR_AHEAD"),
        (pb.WatchTopic(topic="log-5", revision=9), "CURSOR_AHEAD"),
    ],
)
async def test_one_topic_that_cannot_start_fails_the_stream_and_is_named(
    cluster: ServedDelivery, bad: pb.WatchTopic, reason: str
) -> None:
    for number in range(10):
        await log_topic(cluster.store, f"log-{number}")
        await append(cluster.store, f"log-{number}", rows("a"))
    wanted = [earliest(f"log-{number}") for number in range(10)]
    wanted[5] = bad
    error = unwrap(await cluster.refusal(*wanted))
    assert (error.reason, error.metadata["topic"]) == (reason, bad.topic)
    assert cluster.role.stats.watch_count == 0
