"""AppendStream: order, reading ahead, the first failure, cancellation and deadline."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import HeadMismatch
from eddyline.v1 import topic_pb2
from eddyline.v1.log_pb2 import (
    AppendBatch,
    AppendStart,
    AppendStreamRequest,
    AppendStreamResponse,
    CreateIfMissing,
    ReadRecordsRequest,
)
from eddyline.v1.types_pb2 import OP_APPEND, Record, RecordBatch
from tests.store.rpc.requests import append_step, keyed, keyless, rows
from tests.support.hang import HANG_S
from tests.support.manual_clock import settle
from tests.support.store.served import Gate, answers_of, refused, served_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import grpc

    from tests.support.store.served import ServedStore

LOG, KV = topic_pb2.TOPIC_KIND_LOG, topic_pb2.TOPIC_KIND_KV
MIB = 1 << 20


def start(topic: str, epoch: int = 0, create: CreateIfMissing | None = None) -> AppendStreamRequest:
    return AppendStreamRequest(start=AppendStart(topic=topic, epoch=epoch, create=create))


@asynccontextmanager
async def stalled_store(folder: Path) -> AsyncIterator[tuple[ServedStore, Gate]]:
    """Serve a store with topic `log` whose disk writes nothing until the gate is opened."""
    disk = Gate()
    async with served_store(folder / "store", disk=disk) as store:
        await store.create("log", LOG)
        disk.close()
        yield store, disk


async def staged_head(store: ServedStore, topic: str) -> int:
    """The head with all that is under way, as a condition that cannot hold tells it."""
    request = rows(topic, keyless("x"))
    request.expected_head_seq = 1 << 60
    error = await refused(store.log.AppendRecords(request), "HEAD_MISMATCH")
    assert isinstance(error, HeadMismatch)
    return error.head_seq


async def until_staged(store: ServedStore, topic: str, seq: int) -> None:
    while await staged_head(store, topic) < seq:
        pass


async def test_answers_come_one_an_append_in_order(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = await store.create("log", LOG)
        steps = [start("log"), *(append_step(keyless(str(number)), keyless("x")) for number in range(200))]
        answers, reason = await answers_of(store.log.AppendStream(iter(steps)))
        assert reason == ""
        assert [(answer.first_seq, answer.last_seq) for answer in answers] == [
            (2 * n + 1, 2 * n + 2) for n in range(200)
        ]
        assert {answer.epoch for answer in answers} == {made.epoch}
        read = await store.log.ReadRecords(ReadRecordsRequest(topic="log", limit=400))
        stored = [record.data for item in read.items for record in item.rows.records]
        assert stored[::2] == [str(number).encode() for number in range(200)]


async def test_invalid_step_ends_the_stream_after_the_answers_before_it(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        call: grpc.aio.StreamStreamMultiCallable[bytes, AppendStreamResponse] = store.channel.stream_stream(
            "/eddyline.v1.LogService/AppendStream", response_deserializer=AppendStreamResponse.FromString
        )
        before = [step.SerializeToString() for step in (start("log"), append_step(keyless("a")))]
        after = append_step(keyless("b")).SerializeToString()
        answers, reason = await answers_of(call(iter([*before, b"\xff\xff", after])))
        assert ([answer.last_seq for answer in answers], reason) == ([1], "INVALID_ARGUMENT")
        assert await store.head("log") == 1


async def test_stream_without_appends_ends_well(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        assert await answers_of(store.log.AppendStream(iter([]))) == ([], "")
        assert await answers_of(store.log.AppendStream(iter([start("log")]))) == ([], "")


async def test_start_makes_a_missing_topic(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        for _ in range(2):
            steps = [start("kv", create=CreateIfMissing(kind=KV)), append_step(keyed("a", "1"))]
            answers, reason = await answers_of(store.log.AppendStream(iter(steps)))
            assert (len(answers), reason) == (1, "")
        assert await store.head("kv") == 2


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        pytest.param([append_step(keyless("1"))], "STREAM_ORDER", id="append first"),
        pytest.param([AppendStreamRequest()], "STREAM_ORDER", id="nothing first"),
        pytest.param([start("nobody"), append_step(keyless("1"))], "TOPIC_NOT_FOUND", id="unknown topic"),
        pytest.param([start("no such")], "INVALID_NAME", id="bad name"),
        pytest.param([start("log", epoch=99), append_step(keyless("1"))], "EPOCH_MISMATCH", id="other epoch"),
        pytest.param([start("other", create=CreateIfMissing())], "INVALID_ARGUMENT", id="no kind"),
        pytest.param([start("bad name", create=CreateIfMissing(kind=LOG))], "INVALID_NAME", id="bad name to make"),
    ],
)
async def test_bad_start_ends_the_stream_with_nothing_stored(
    tmp_path: Path, steps: list[AppendStreamRequest], reason: str
) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        assert await answers_of(store.log.AppendStream(iter(steps))) == ([], reason)
        assert await store.head("log") == 0


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        pytest.param(start("log"), "STREAM_ORDER", id="second start"),
        pytest.param(AppendStreamRequest(), "INVALID_ARGUMENT", id="no step"),
        pytest.param(AppendStreamRequest(append=AppendBatch()), "INVALID_ARGUMENT", id="no batch"),
        pytest.param(append_step(Record(data=bytes(MIB + 1))), "RECORD_TOO_LARGE", id="large record"),
        pytest.param(
            AppendStreamRequest(append=AppendBatch(rows=RecordBatch(records=[keyless("1")]), expected_head_seq=9)),
            "HEAD_MISMATCH",
            id="condition",
        ),
        pytest.param(append_step(keyless("other"), key="once"), "IDEMPOTENCY_CONFLICT", id="idempotency conflict"),
    ],
)
async def test_first_failure_ends_the_stream_after_the_answers_before_it(
    tmp_path: Path, bad: AppendStreamRequest, reason: str
) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        steps = [
            start("log"),
            append_step(keyless("1"), key="once"),
            append_step(keyless("2")),
            bad,
            append_step(keyless("3")),
        ]
        answers, ended = await answers_of(store.log.AppendStream(iter(steps)))
        assert ended == reason
        assert [answer.first_seq for answer in answers] == [1, 2]
        assert await staged_head(store, "log") == 2


async def test_conditions_count_the_appends_in_flight(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        steps = [start("log")]
        for number in range(10):
            batch = AppendBatch(rows=RecordBatch(records=[keyless("x")]), expected_head_seq=number)
            batch.writer.writer = "w"
            batch.writer.previous = str(number).encode() if number else b""
            batch.writer.new = str(number + 1).encode()
            steps.append(AppendStreamRequest(append=batch))
        answers, reason = await answers_of(store.log.AppendStream(iter(steps)))
        assert (len(answers), reason) == (10, "")


async def test_append_of_a_key_in_flight_gets_that_ones_answer(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        steps = [start("log"), append_step(keyless("1"), key="once"), append_step(keyless("1"), key="once")]
        answers, reason = await answers_of(store.log.AppendStream(iter(steps)))
        assert reason == ""
        assert [(answer.first_seq, answer.deduplicated) for answer in answers] == [(1, False), (1, True)]


async def test_start_with_an_epoch_that_is_gone_makes_no_topic(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        steps = [start("new", epoch=99, create=CreateIfMissing(kind=LOG)), append_step(keyless("1"))]
        assert await answers_of(store.log.AppendStream(iter(steps))) == ([], "EPOCH_MISMATCH")
        assert store.link.status().topic_count == 0


async def test_epoch_is_fixed_at_the_start(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        call = store.log.AppendStream()
        await call.write(start("log"))
        await call.write(append_step(keyless("1")))
        assert (await anext(aiter(call))).first_seq == 1
        await store.topics.DeleteTopic(topic_pb2.DeleteTopicRequest(topic="log"))
        await store.create("log", LOG)
        await call.write(append_step(keyless("2")))
        assert await answers_of(call) == ([], "EPOCH_MISMATCH")
        assert await store.head("log") == 0


@pytest.mark.parametrize(
    ("appends", "staged_seq"),
    [
        pytest.param([append_step(keyless("x"))] * 60, 16, id="16 appends"),
        pytest.param([append_step(*[Record(data=bytes(MIB))] * 5)] * 6, 20, id="16 MiB"),
    ],
)
async def test_sixteen_appends_or_mebibytes_are_read_ahead_of_their_answers(
    tmp_path: Path, appends: list[AppendStreamRequest], staged_seq: int
) -> None:
    async with stalled_store(tmp_path) as (store, disk):
        call = store.log.AppendStream(iter([start("log"), *appends]))
        await until_staged(store, "log", staged_seq)
        await settle(1_000)
        assert await staged_head(store, "log") == staged_seq
        disk.open()
        answers, reason = await answers_of(call)
        assert (len(answers), reason) == (len(appends), "")


async def test_cancelled_stream_stops_reading_and_keeps_staged_appends(tmp_path: Path) -> None:
    async with stalled_store(tmp_path) as (store, disk):
        call = store.log.AppendStream(iter([start("log"), *(append_step(keyless("x")) for _ in range(60))]))
        await until_staged(store, "log", 16)
        tasks = {getattr(task.get_coro(), "__qualname__", ""): task for task in asyncio.all_tasks()}
        call.cancel()
        ended, _ = await asyncio.wait([tasks["AppendStreamCall._read"]], timeout=HANG_S)
        assert ended
        disk.open()
        last = await store.log.AppendRecords(rows("log", keyless("last")))
        assert last.first_seq == 17
        assert await store.head("log") == 17


async def test_expired_stream_is_cut_by_its_deadline(tmp_path: Path) -> None:
    async with stalled_store(tmp_path) as (store, disk):
        call = store.log.AppendStream(iter([start("log"), append_step(keyless("x"))]), timeout=0.2)
        assert await answers_of(call) == ([], "DEADLINE")
        disk.open()
        assert (await store.log.AppendRecords(rows("log", keyless("last")))).first_seq == 2


async def test_stopping_store_answers_staged_appends_and_ends_the_stream(tmp_path: Path) -> None:
    async with stalled_store(tmp_path) as (store, disk):
        call = store.log.AppendStream()
        await call.write(start("log"))
        await call.write(append_step(keyless("x")))
        await until_staged(store, "log", 1)
        store.handle.close()
        disk.open()
        answers, reason = await answers_of(call)
        assert ([answer.first_seq for answer in answers], reason) == ([1], "NOT_READY")


async def test_unset_op_in_a_stream_depends_on_the_topics_kind(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv", KV)
        steps = [start("kv"), append_step(keyed("a", "1")), append_step(Record(key=b"a", op=OP_APPEND))]
        answers, reason = await answers_of(store.log.AppendStream(iter(steps)))
        assert (len(answers), reason) == (1, "INVALID_OP")
