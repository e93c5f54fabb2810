"""FollowTopics: steps, credit, order, ends, and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.v1 import topic_pb2
from eddyline.v1.apply_pb2 import FollowAdd, FollowRemove, FollowTopicsRequest, FollowTopicsResponse
from eddyline.v1.types_pb2 import GAP_REASON_RECREATED
from tests.store.rpc.requests import keyless, rows
from tests.support.store.served import answers_of, served_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

LOG = topic_pb2.TOPIC_KIND_LOG
MIB = 1 << 20


def add(follow_id: int, topic: str, after_seq: int | None = None, epoch: int = 0) -> FollowTopicsRequest:
    step = FollowAdd(follow_id=follow_id, topic=topic, epoch=epoch)
    if after_seq is not None:
        step.after_seq = after_seq
    return FollowTopicsRequest(add=step)


def credit(size: int) -> FollowTopicsRequest:
    return FollowTopicsRequest(credit_bytes=size)


async def take(call: AsyncIterator[FollowTopicsResponse], count: int) -> list[FollowTopicsResponse]:
    return [await anext(call) for _ in range(count)]


def kinds(events: list[FollowTopicsResponse]) -> list[str]:
    return [event.WhichOneof("event") or "" for event in events]


async def test_topic_is_followed_from_its_cursor_through_its_head(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = await store.create("a", LOG)
        await store.log.AppendRecords(rows("a", keyless("1"), keyless("2"), keyless("3")))
        call = store.apply.FollowTopics()
        events = aiter(call)
        await call.write(add(7, "a", after_seq=1))
        await call.write(credit(MIB))
        started, item, level = await take(events, 3)
        assert kinds([started, item, level]) == ["started", "item", "level"]
        assert (started.follow_id, started.started.after_seq, started.started.topic.epoch) == (7, 1, made.epoch)
        columns = item.item.item.columns
        assert (columns.first_seq, columns.count, columns.data.values) == (2, 2, b"23")
        assert (item.item.next_after_seq, item.item.head_seq, level.level.head_seq) == (3, 3, 3)
        await store.log.AppendRecords(rows("a", keyless("4")))
        (live,) = await take(events, 1)
        assert (live.item.item.columns.first_seq, live.item.next_after_seq) == (4, 4)
        call.cancel()


async def test_unset_cursor_follows_from_the_head(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("a", LOG)
        await store.log.AppendRecords(rows("a", keyless("1")))
        call = store.apply.FollowTopics()
        events = aiter(call)
        await call.write(add(1, "a"))
        await call.write(credit(MIB))
        started, level = await take(events, 2)
        assert (started.started.after_seq, kinds([level])) == (1, ["level"])
        call.cancel()


async def test_nothing_with_records_is_sent_without_credit(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("a", LOG)
        await store.log.AppendRecords(rows("a", keyless("x" * 1_000), keyless("x" * 1_000)))
        call = store.apply.FollowTopics()
        events = aiter(call)
        await call.write(add(1, "a", after_seq=0))
        assert kinds(await take(events, 1)) == ["started"]
        await call.write(add(2, "nobody"))
        assert kinds(await take(events, 1)) == ["ended"]  # what has no records needs no credit
        await call.write(credit(1))
        item, level = await take(events, 2)
        assert (item.item.next_after_seq, kinds([level])) == (2, ["level"])  # an item may take more than is left
        await store.log.AppendRecords(rows("a", keyless("late")))
        await call.write(credit(1_000))
        await call.write(add(2, "nobody"))
        assert kinds(await take(events, 1)) == ["ended"]
        await call.write(credit(1_100))
        (late,) = await take(events, 1)
        assert late.item.item.columns.data.values == b"late"
        call.cancel()


async def test_topic_that_cannot_be_followed_ends_alone(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("a", LOG)
        call = store.apply.FollowTopics()
        events = aiter(call)
        await call.write(credit(MIB))
        for follow_id, step in enumerate((add(0, "nobody"), add(1, "no such"), add(2, "a", after_seq=9))):
            await call.write(step)
            (ended,) = await take(events, 1)
            assert ended.follow_id == follow_id
            expected = ("TOPIC_NOT_FOUND", "INVALID_NAME", "CURSOR_AHEAD")[follow_id]
            assert (ended.ended.reason, bool(ended.ended.message)) == (expected, True)
        await call.write(add(3, "a", after_seq=0))
        assert kinds(await take(events, 2)) == ["started", "level"]
        await store.topics.DeleteTopic(topic_pb2.DeleteTopicRequest(topic="a"))
        (ended,) = await take(events, 1)
        assert (ended.follow_id, ended.ended.reason) == (3, "TOPIC_NOT_FOUND")
        call.cancel()


async def test_cursor_of_another_epoch_gets_a_gap_then_all(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        old = await store.create("a", LOG)
        await store.topics.DeleteTopic(topic_pb2.DeleteTopicRequest(topic="a"))
        await store.create("a", LOG)
        await store.log.AppendRecords(rows("a", keyless("1")))
        call = store.apply.FollowTopics()
        await call.write(add(1, "a", after_seq=9, epoch=old.epoch))
        await call.write(credit(MIB))
        events = await take(aiter(call), 3)
        assert kinds(events) == ["started", "item", "item"]
        assert events[1].item.item.gap.reason == GAP_REASON_RECREATED
        assert events[2].item.item.columns.first_seq == 1
        call.cancel()


async def test_removed_topic_is_silent(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("a", LOG)
        await store.create("b", LOG)
        call = store.apply.FollowTopics()
        events = aiter(call)
        for step in (credit(MIB), add(1, "a"), add(2, "b")):
            await call.write(step)
        await take(events, 4)
        await call.write(FollowTopicsRequest(remove=FollowRemove(follow_id=1)))
        await call.write(add(3, "b"))
        await take(events, 2)
        await store.log.AppendRecords(rows("a", keyless("1")))
        await store.log.AppendRecords(rows("b", keyless("1")))
        assert {event.follow_id for event in await take(events, 2)} == {2, 3}
        call.cancel()


async def test_half_closed_stream_still_gets_events(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("a", LOG)
        call = store.apply.FollowTopics(iter([credit(MIB), add(1, "a")]))
        events = aiter(call)
        await take(events, 2)
        await store.log.AppendRecords(rows("a", keyless("1")))
        assert kinds(await take(events, 1)) == ["item"]
        call.cancel()


async def test_bad_steps_end_the_stream(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("a", LOG)
        for steps in (
            [FollowTopicsRequest()],
            [credit(64 * MIB + 1)],
            [credit(64 * MIB), credit(1)],
            [credit((1 << 64) - 1)],
        ):
            assert await answers_of(store.apply.FollowTopics(iter(steps))) == ([], "INVALID_ARGUMENT")


async def test_follows_end_when_the_store_stops(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("a", LOG)
        call = store.apply.FollowTopics()
        await call.write(add(1, "a"))
        assert kinds(await take(aiter(call), 2)) == ["started", "level"]
        store.handle.close()
        assert await answers_of(call) == ([], "NOT_READY")


async def test_stream_cancelled_in_its_first_write_still_ends_with_its_error(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("a", LOG)
        for _ in range(50):
            _, reason = await answers_of(store.apply.FollowTopics(iter([add(1, "a"), FollowTopicsRequest()])))
            assert reason == "INVALID_ARGUMENT"
