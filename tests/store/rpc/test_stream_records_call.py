"""StreamRecords: bounds, following, filters, gaps, snapshots that heal, and resuming at every frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.read import ReadResult
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, GapReason, Record
from eddyline.v1 import topic_pb2
from eddyline.v1.apply_pb2 import AcquireLeaseRequest, ApplyBatchRequest, PutSourceRequest, SourceDefinition
from eddyline.v1.log_pb2 import GAP_POLICY_HEAL, RecordFilter, StreamRecordsRequest
from eddyline.v1.types_pb2 import BATCH_FORMAT_COLUMNS, GAP_REASON_RECREATED, OP_GAP, OP_PUT
from tests.store.rpc.requests import column, columns, keyed, keyless, rows
from tests.support.store.scripted_shard import ScriptedShard, scripted_store
from tests.support.store.served import answers_of, served_store, until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from eddyline.v1.log_pb2 import StreamRecordsResponse
    from tests.support.store.served import ServedStore

LOG, KV = topic_pb2.TOPIC_KIND_LOG, topic_pb2.TOPIC_KIND_KV


def kinds(frames: Iterable[StreamRecordsResponse]) -> list[str | None]:
    return [frame.WhichOneof("frame") for frame in frames]


def seqs(frames: Iterable[StreamRecordsResponse]) -> list[int]:
    return [record.seq for frame in frames for record in frame.rows.records]


async def streamed(store: ServedStore, request: StreamRecordsRequest) -> list[StreamRecordsResponse]:
    frames, reason = await answers_of(store.log.StreamRecords(request))
    assert reason == ""
    return frames


async def fill(store: ServedStore, topic: str, count: int) -> None:
    await store.log.AppendRecords(rows(topic, *[keyless(str(number)) for number in range(count)]))


async def with_gap(store: ServedStore, topic: str = "kv") -> int:
    """A KV topic with keys b, a written by its source, then a gap at seq 3, then c; its epoch."""
    made = await store.create(topic)
    definition = SourceDefinition(name="s", topic=topic, bucket="b")
    await store.apply.PutSource(PutSourceRequest(definition=definition))
    fence = (await store.apply.AcquireLease(AcquireLeaseRequest(source="s", holder="h"))).fence
    lost = encode_gap(Gap(0, 0, GapReason.SOURCE_GAP, source_identity=b"id", source_first=3, source_last=5))
    batch = columns(key=[b"b", b"a", b"", b"c"])
    batch.data.CopyFrom(column(b"1", b"2", lost, b"3"))
    batch.ops = bytes([OP_PUT, OP_PUT, OP_GAP, OP_PUT])
    await store.apply.ApplyBatch(ApplyBatchRequest(source="s", fence=fence, new=b"1", batch=batch))
    return made.epoch


async def test_a_stream_ends_level_with_the_head_at_its_start(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = await store.create("t", LOG)
        assert kinds(await streamed(store, StreamRecordsRequest(topic="t"))) == ["caught_up"]
        await fill(store, "t", 10_000)
        await fill(store, "t", 500)
        frames = await streamed(store, StreamRecordsRequest(topic="t", after_seq=3))
        assert seqs(frames) == list(range(4, 10_501))
        assert len(frames) > 2
        assert {frame.epoch for frame in frames} == {made.epoch}
        assert [frame.next_after_seq for frame in frames[:-1]] == [frame.rows.records[-1].seq for frame in frames[:-1]]
        assert (frames[-1].caught_up.head_seq, frames[-1].next_after_seq) == (10_500, 10_500)
        as_columns = await streamed(store, StreamRecordsRequest(topic="t", format=BATCH_FORMAT_COLUMNS))
        assert sum(frame.columns.count for frame in as_columns) == 10_500


@pytest.mark.parametrize(("after", "end", "expected"), [(0, 4, [1, 2, 3]), (2, 4, [3]), (4, 3, []), (0, 1, [])])
async def test_an_end_is_exclusive_and_need_not_be_the_head(
    tmp_path: Path, after: int, end: int, expected: list[int]
) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("t", LOG)
        await fill(store, "t", 6)
        frames = await streamed(store, StreamRecordsRequest(topic="t", after_seq=after, end_seq=end))
        assert seqs(frames) == expected
        assert "caught_up" not in kinds(frames)
        assert all(frame.next_after_seq < end for frame in frames)
        frames = await streamed(store, StreamRecordsRequest(topic="t", end_seq=7))
        assert kinds(frames)[-1] == "caught_up"
        frames = await streamed(store, StreamRecordsRequest(topic="t", end_seq=99))
        assert seqs(frames) == [1, 2, 3, 4, 5, 6]


async def test_a_stream_that_follows_goes_on_and_ends_at_its_end(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("t", LOG)
        await fill(store, "t", 2)
        call = store.log.StreamRecords(StreamRecordsRequest(topic="t", follow=True, end_seq=5))
        frames = aiter(call)
        assert seqs([await anext(frames)]) == [1, 2]
        assert (await anext(frames)).caught_up.head_seq == 2
        await fill(store, "t", 1)
        assert seqs([await anext(frames)]) == [3]
        await fill(store, "t", 3)
        assert seqs([await anext(frames)]) == [4]
        assert await answers_of(call) == ([], "")


async def test_a_stream_that_follows_ends_when_the_store_stops_or_the_topic_goes(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("t", LOG)
        for ending in ("TOPIC_NOT_FOUND", "NOT_READY"):
            topic = "t" if ending == "TOPIC_NOT_FOUND" else (await store.create("u", LOG)).name
            call = store.log.StreamRecords(StreamRecordsRequest(topic=topic, follow=True))
            assert (await anext(aiter(call))).WhichOneof("frame") == "caught_up"
            if ending == "TOPIC_NOT_FOUND":
                await store.topics.DeleteTopic(topic_pb2.DeleteTopicRequest(topic="t"))
            else:
                store.handle.close()
            assert await answers_of(call) == ([], ending)


async def test_records_hidden_by_a_filter_move_the_resume_point(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await store.log.AppendRecords(rows("kv", keyed("a1", "1"), keyed("b", "2"), keyed("a2", "3"), keyed("c", "4")))
        shown = StreamRecordsRequest(topic="kv", filter=RecordFilter(key_prefixes=[b"a"]))
        frames = await streamed(store, shown)
        assert (kinds(frames), seqs(frames)) == (["rows", "caught_up"], [1, 3])
        assert [frame.next_after_seq for frame in frames] == [4, 4]
        hidden = StreamRecordsRequest(topic="kv", filter=RecordFilter(key_prefixes=[b"x"]))
        frames = await streamed(store, hidden)
        assert kinds(frames) == [None, "caught_up"]
        assert frames[0].next_after_seq == 4


async def test_gaps_come_in_their_places(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await with_gap(store)
        frames = await streamed(store, StreamRecordsRequest(topic="kv"))
        assert kinds(frames) == ["rows", "gap", "rows", "caught_up"]
        assert [frame.next_after_seq for frame in frames] == [2, 3, 4, 4]
        assert (frames[1].gap.seq, frames[1].gap.source_first) == (3, 3)


async def test_a_gap_is_healed_by_the_fold_and_the_log_goes_on_after_it(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        epoch = await with_gap(store)
        request = StreamRecordsRequest(topic="kv", on_gap=GAP_POLICY_HEAL)
        frames = await streamed(store, request)
        assert kinds(frames) == ["rows", "gap", "snapshot_begin", "rows", "snapshot_end", "caught_up"]
        assert frames[2].snapshot_begin.seq == 4
        assert [record.key for record in frames[3].rows.records] == [b"a", b"b", b"c"]
        assert frames[4].snapshot_end.count == 3
        # A stream that breaks off before the snapshot is complete meets the gap again.
        assert [frame.next_after_seq for frame in frames] == [2, 2, 2, 2, 4, 4]
        for frame in frames[:4]:
            resumed = StreamRecordsRequest(
                topic="kv", on_gap=GAP_POLICY_HEAL, after_seq=frame.next_after_seq, epoch=frame.epoch
            )
            assert kinds(await streamed(store, resumed)) == kinds(frames)[1:]
        request.filter.key_prefixes.append(b"c")
        frames = await streamed(store, request)
        assert [record.key for frame in frames for record in frame.rows.records] == [b"c"]
        assert {frame.epoch for frame in frames} <= {0, epoch}


async def test_without_a_gap_nothing_is_healed(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await store.log.AppendRecords(rows("kv", keyed("a", "1")))
        frames = await streamed(store, StreamRecordsRequest(topic="kv", on_gap=GAP_POLICY_HEAL))
        assert kinds(frames) == ["rows", "caught_up"]


async def test_a_cursor_of_another_epoch_gets_a_gap_then_all(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        old = await store.create("kv")
        await store.topics.DeleteTopic(topic_pb2.DeleteTopicRequest(topic="kv"))
        new = await store.create("kv")
        await store.log.AppendRecords(rows("kv", keyed("a", "1"), keyed("a", "2")))
        request = StreamRecordsRequest(topic="kv", after_seq=9, epoch=old.epoch, end_seq=2)
        frames = await streamed(store, request)
        assert kinds(frames) == ["gap", "rows", "caught_up"]
        assert (frames[0].gap.reason, frames[0].next_after_seq, frames[0].epoch) == (GAP_REASON_RECREATED, 0, new.epoch)
        assert seqs(frames) == [1, 2]
        healed = StreamRecordsRequest(topic="kv", after_seq=9, epoch=old.epoch, on_gap=GAP_POLICY_HEAL)
        frames = await streamed(store, healed)
        assert kinds(frames) == ["gap", "snapshot_begin", "rows", "snapshot_end", "caught_up"]
        resume_points = [(frame.next_after_seq, frame.epoch) for frame in frames]
        assert resume_points == [(9, old.epoch)] * 3 + [(2, new.epoch)] * 2


async def test_a_floor_gap_is_cut_at_the_requested_end() -> None:
    batch = Batch.from_rows([Record(data=b"x")] * 3).with_seqs(8, 5)
    result = ReadResult((Gap(1, 7, GapReason.CAP), batch), 10, 10, 8, 7)
    for end, expected in ((5, [(1, 4)]), (9, [(1, 7)])):
        async with scripted_store(ScriptedShard({"read_records": result})) as store:
            frames, reason = await answers_of(store.log.StreamRecords(StreamRecordsRequest(topic="t", end_seq=end)))
        assert reason == ""
        assert [(frame.gap.first_seq, frame.gap.last_seq) for frame in frames if frame.HasField("gap")] == expected
        assert frames[-1].next_after_seq == end - 1
        assert seqs(frames) == ([8] if end == 9 else [])


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (StreamRecordsRequest(topic="none"), "TOPIC_NOT_FOUND"),
        (StreamRecordsRequest(topic="/"), "INVALID_NAME"),
        (StreamRecordsRequest(topic="log", after_seq=1), "CURSOR_AHEAD"),
        (StreamRecordsRequest(topic="log", format=9), "INVALID_ARGUMENT"),  # type: ignore[arg-type]
        (StreamRecordsRequest(topic="log", on_gap=9), "INVALID_ARGUMENT"),  # type: ignore[arg-type]
        (StreamRecordsRequest(topic="log", filter=RecordFilter(tags=["t"] * 1_001)), "INVALID_ARGUMENT"),
        (StreamRecordsRequest(topic="log", on_gap=GAP_POLICY_HEAL), "NOT_KV"),
        (StreamRecordsRequest(topic="kv", on_gap=GAP_POLICY_HEAL, end_seq=5), "INVALID_ARGUMENT"),
    ],
)
async def test_invalid_stream_requests_are_refused(tmp_path: Path, request_: StreamRecordsRequest, reason: str) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        await store.create("kv")
        assert await answers_of(store.log.StreamRecords(request_)) == ([], reason)


async def test_a_cancelled_stream_frees_everything(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("t", LOG)
        call = store.log.StreamRecords(StreamRecordsRequest(topic="t", follow=True))
        assert (await anext(aiter(call))).WhichOneof("frame") == "caught_up"
        topic = store.link._table.get("t")
        await until(lambda: bool(topic._waiters))
        call.cancel()
        await until(lambda: not topic._waiters)
