"""SegmentService over gRPC: plans in pages, splits as Arrow messages, and every refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pyarrow as pa
import pytest
from pyarrow import ipc
from xxhash import xxh3_64_intdigest

from eddyline.core.errors import HistoryGone, TooManyScans
from eddyline.store.rpc.segment_service import STALL_S_MAX
from eddyline.store.splits.model import ArrowMessage, SchemaMessage, SplitCounts, SplitKind
from eddyline.store.splits.slots import STREAMS_AT_ONCE, WAITING_MAX
from eddyline.v1 import segment_pb2 as pb
from eddyline.v1 import topic_pb2
from eddyline.v1.log_pb2 import RecordFilter
from tests.store.rpc.requests import keyed, rows
from tests.support.manual_clock import settle
from tests.support.store.scripted_shard import ScriptedShard, scripted_store
from tests.support.store.served import ServedStore, answers_of, refused, served_store, until

if TYPE_CHECKING:
    from pathlib import Path

LOG = pb.Split(kind=pb.SPLIT_KIND_LOG, first=1, last=6)


async def filled(store: ServedStore) -> int:
    """A KV topic of two appends of three records; its epoch."""
    epoch = (await store.create("t")).epoch
    for number in range(2):
        await store.log.AppendRecords(rows("t", *(keyed(f"{number}{row}", "x") for row in range(3))))
    return epoch


async def test_a_topic_is_planned_in_pages_and_read_whole(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        epoch = await filled(store)
        request = pb.PlanSplitsRequest(topic="t", max_records=3, page_size=1)
        splits: list[pb.Split] = []
        while True:
            plan = await store.segments.PlanSplits(request)
            assert (plan.epoch, plan.first_seq, plan.end_seq, plan.head_seq) == (epoch, 1, 7, 6)
            splits += plan.splits
            request.page_token = plan.next_page_token
            if not plan.next_page_token:
                break
        assert [(split.first, split.last, split.record_count) for split in splits] == [(1, 3, 3), (4, 6, 3)]
        seqs: list[int] = []
        for split in splits:
            call = store.segments.ReadSplit(pb.ReadSplitRequest(topic="t", epoch=epoch, split=split))
            (schema, *batches, end), reason = await answers_of(call)
            assert not reason
            told = ipc.read_schema(pa.py_buffer(schema.schema))
            for answer in batches:
                assert xxh3_64_intdigest(answer.batch.message) == answer.batch.checksum
                table = ipc.read_record_batch(pa.py_buffer(answer.batch.message), told)
                assert table.num_rows == answer.batch.count
                seqs += table.column("seq").to_pylist()
            assert end.end == pb.SplitEnd(row_count=3)
        assert seqs == [1, 2, 3, 4, 5, 6]


async def test_a_fold_is_planned_and_read_at_a_point(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        epoch = await filled(store)
        plan = await store.segments.PlanSplits(pb.PlanSplitsRequest(topic="t", as_of_seq=4))
        (split,) = plan.splits
        assert split == pb.Split(
            kind=pb.SPLIT_KIND_HISTORY, first=1, last=4, record_count=4, size_bytes=split.size_bytes, as_of_seq=4
        )
        request = pb.ReadSplitRequest(topic="t", epoch=epoch, split=split, columns=[pb.SPLIT_COLUMN_KEY])
        (schema, batch, end), reason = await answers_of(store.segments.ReadSplit(request))
        table = ipc.read_record_batch(pa.py_buffer(batch.batch.message), ipc.read_schema(pa.py_buffer(schema.schema)))
        assert (table.to_pydict(), reason) == ({"key": [b"00", b"01", b"02", b"10"]}, "")
        assert end.end.row_count == 4


async def test_a_filter_hides_and_counts(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        epoch = await filled(store)
        hidden = pb.SplitFilter(records=RecordFilter(key_prefixes=[b"1"]))
        answers, _ = await answers_of(
            store.segments.ReadSplit(pb.ReadSplitRequest(topic="t", epoch=epoch, split=LOG, filter=hidden))
        )
        assert answers[-1].end == pb.SplitEnd(row_count=3, hidden_count=3)


async def test_page_tokens_are_bound_to_their_plan(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await filled(store)
        first = await store.segments.PlanSplits(pb.PlanSplitsRequest(topic="t", max_records=3, page_size=1))
        token = first.next_page_token
        for request in (
            pb.PlanSplitsRequest(topic="t", max_records=4, page_token=token),
            pb.PlanSplitsRequest(topic="t", max_records=3, end_seq=7, page_token=token),
            pb.PlanSplitsRequest(topic="t", max_records=3, page_token="x"),
        ):
            await refused(store.segments.PlanSplits(request), "PAGE_TOKEN_INVALID")
        await store.topics.DeleteTopic(topic_pb2.DeleteTopicRequest(topic="t"))
        await filled(store)
        again = pb.PlanSplitsRequest(topic="t", max_records=3, page_token=token)
        await refused(store.segments.PlanSplits(again), "EPOCH_MISMATCH")


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (pb.ReadSplitRequest(topic="t", split=LOG), "INVALID_ARGUMENT"),
        (pb.ReadSplitRequest(topic="t", epoch=1), "INVALID_ARGUMENT"),
        (pb.ReadSplitRequest(topic="t", epoch=1, split=pb.Split(first=1, last=2)), "INVALID_ARGUMENT"),
        (pb.ReadSplitRequest(topic="t", epoch=1, split=LOG, columns=[pb.SPLIT_COLUMN_UNSPECIFIED]), "INVALID_ARGUMENT"),
        (
            pb.ReadSplitRequest(topic="t", epoch=1, split=LOG, filter=pb.SplitFilter(share_count=1, share=1)),
            "INVALID_ARGUMENT",
        ),
        (pb.ReadSplitRequest(topic="t", epoch=9, split=LOG), "EPOCH_MISMATCH"),
        (pb.ReadSplitRequest(topic="none", epoch=1, split=LOG), "TOPIC_NOT_FOUND"),
        (
            pb.ReadSplitRequest(topic="t", epoch=1, split=pb.Split(kind=pb.SPLIT_KIND_LOG, first=1, last=7)),
            "CURSOR_AHEAD",
        ),
    ],
)
async def test_reads_that_cannot_be_are_refused(tmp_path: Path, request_: pb.ReadSplitRequest, reason: str) -> None:
    async with served_store(tmp_path / "store") as store:
        await filled(store)
        answers, found = await answers_of(store.segments.ReadSplit(request_))
        assert (answers, found) == ([], reason)


async def test_plans_that_cannot_be_are_refused(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await filled(store)
        for request, reason in (
            (pb.PlanSplitsRequest(topic="t", page_size=-1), "INVALID_ARGUMENT"),
            (pb.PlanSplitsRequest(topic="t", after_seq=7), "CURSOR_AHEAD"),
            (pb.PlanSplitsRequest(topic="none"), "TOPIC_NOT_FOUND"),
            (pb.PlanSplitsRequest(topic="t", epoch=9), "EPOCH_MISMATCH"),
            (pb.PlanSplitsRequest(topic="t", as_of_seq=7), "CURSOR_AHEAD"),
            (pb.PlanSplitsRequest(topic="t", as_of_seq=0, end_seq=3), "INVALID_ARGUMENT"),
        ):
            await refused(store.segments.PlanSplits(request), reason)


async def test_refused_as_of_seq_names_the_earliest_possible_one() -> None:
    async with scripted_store(ScriptedShard({"plan_splits": HistoryGone("gone", earliestSeq=12)})) as store:
        request = pb.PlanSplitsRequest(topic="t", as_of_seq=4)
        error = await refused(store.segments.PlanSplits(request), "HISTORY_GONE")
        assert error.metadata["earliestSeq"] == "12"


async def test_answers_are_what_the_contract_says_byte_for_byte() -> None:
    """They are laid out by hand: protobuf reads them as its own."""
    message = ArrowMessage(bytes(range(256)) * 3, 1 << 63, 300)
    door = ScriptedShard({"read_split": [SchemaMessage(b"s"), message, SplitCounts(300, 1, 2, 3)]})
    async with scripted_store(door) as store:
        request = pb.ReadSplitRequest(topic="t", epoch=5, split=LOG)
        answers, _ = await answers_of(store.segments.ReadSplit(request))
    assert answers == [
        pb.ReadSplitResponse(schema=b"s"),
        pb.ReadSplitResponse(batch=pb.ArrowBatch(message=message.message, checksum=1 << 63, count=300)),
        pb.ReadSplitResponse(end=pb.SplitEnd(row_count=300, gap_count=1, deleted_count=2, hidden_count=3)),
    ]
    ((_, (topic, asked), named),) = door.asked
    assert (topic, asked.split.kind, named) == ("t", SplitKind.LOG, {"epoch": 5})  # type: ignore[attr-defined]


async def test_read_above_the_limit_is_refused_with_a_time_to_retry() -> None:
    door = ScriptedShard({"read_split": [TooManyScans("many", scansMax=8, retryAfterMs=1_000)]})
    async with scripted_store(door) as store:
        request = pb.ReadSplitRequest(topic="t", epoch=5, split=LOG)
        call = store.segments.ReadSplit(request)
        assert await answers_of(call) == ([], "TOO_MANY_SCANS")


async def test_cancelled_reads_leave_their_places(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        epoch = await filled(store)
        request = pb.ReadSplitRequest(topic="t", epoch=epoch, split=LOG)
        for _ in range(STREAMS_AT_ONCE + WAITING_MAX):
            call = store.segments.ReadSplit(request)
            assert await call.read() != grpc.aio.EOF
            call.cancel()
        turns = store.link._parts.history.split_reads._slots
        await until(lambda: turns.served == 0)
        answers, reason = await answers_of(store.segments.ReadSplit(request))
        assert (answers[-1].end.row_count, reason) == (6, "")


async def test_reader_that_takes_no_answer_is_ended(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        epoch = (await store.create("t")).epoch
        for _ in range(40):
            await store.log.AppendRecords(rows("t", keyed("k", "x" * (1 << 20))))
        split = pb.Split(kind=pb.SPLIT_KIND_LOG, first=1, last=40)
        call = store.segments.ReadSplit(pb.ReadSplitRequest(topic="t", epoch=epoch, split=split))
        turns = store.link._parts.history.split_reads._slots
        await until(lambda: turns.served == 1)
        for _ in range(100):
            await settle()
            await store.clock.pass_time(STALL_S_MAX / 50)
        await until(lambda: turns.served == 0)
        _, reason = await answers_of(call)
        assert reason == "SCAN_EXPIRED"


async def test_a_store_that_stops_ends_reads(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        epoch = await filled(store)
        store.handle.close()
        request = pb.ReadSplitRequest(topic="t", epoch=epoch, split=LOG)
        assert await answers_of(store.segments.ReadSplit(request)) == ([], "NOT_READY")
        await refused(store.segments.PlanSplits(pb.PlanSplitsRequest(topic="t")), "NOT_READY")
