"""One partition into a real store: each row once, whatever is run again, beside it or after a kill."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from eddyline.client.connect import connect
from eddyline.core.errors import EddylineError, EpochMismatch, InvalidArgument, RecordTooLarge, StaleFence
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record
from eddyline.spark.writer.partition import IN_FLIGHT_MAX
from eddyline.spark.writer.replay import ReplayableRows
from eddyline.v1 import log_pb2, types_pb2
from eddyline.v1.log_pb2_grpc import LogServiceStub
from tests.support.cluster.processes import KillableStore
from tests.support.spark.target import TopicAt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from eddyline.spark.options.write import OnDifferentRows
    from eddyline.spark.writer.partition import WriteResult

pytestmark = pytest.mark.spark

PIECE = 100


class BrokenError(Exception):
    """A task's failure."""


def data_of(count: int, *, other: int = -1) -> list[bytes]:
    return [b"other" if index == other else b"%d" % index for index in range(count)]


def batches_of(data: Sequence[bytes], *, step: int = PIECE) -> Iterator[Batch]:
    for start in range(0, len(data), step):
        yield Batch.from_rows([Record(data=value) for value in data[start : start + step]])


def breaking(batches: Iterator[Batch], after: int) -> Iterator[Batch]:
    for _, batch in zip(range(after), batches, strict=False):
        yield batch
    raise BrokenError


def paused(batches: Iterator[Batch], after: int, pause: Callable[[], object]) -> Iterator[Batch]:
    for index, batch in enumerate(batches):
        if index == after:
            pause()
        yield batch


def write(
    topic: TopicAt,
    batches: Iterator[Batch],
    *,
    run: int = 0,
    on_different: OnDifferentRows = "append",
    writer: str = "w",
    epoch: int = 0,
    piece: int = PIECE,
) -> WriteResult:
    with closing(
        ReplayableRows(batches, run=run, records_max=piece, bytes_max=1 << 20, on_different=on_different)
    ) as rows:
        return topic.write(rows, run=run, writer=writer, epoch=epoch)


async def test_rows_are_written_once_in_their_order(topic: TopicAt) -> None:
    written = await asyncio.to_thread(write, topic, batches_of(data_of(1234)))
    again = await asyncio.to_thread(write, topic, batches_of(data_of(1234)))
    assert (written.appended, written.first_seq, written.last_seq) == (1234, 1, 1234)
    assert (again.appended, again.took_over) == (0, False)
    assert await topic.data() == data_of(1234)


async def test_an_attempt_that_failed_is_gone_on_with(topic: TopicAt) -> None:
    with pytest.raises(BrokenError):
        await asyncio.to_thread(write, topic, breaking(batches_of(data_of(3000)), after=2 * IN_FLIGHT_MAX))
    landed = len(await topic.data())
    assert IN_FLIGHT_MAX * PIECE <= landed < 3000
    written = await asyncio.to_thread(write, topic, batches_of(data_of(3000), step=77))
    assert written.appended <= 3000 - IN_FLIGHT_MAX * PIECE
    assert await topic.data() == data_of(3000)


async def test_other_rows_are_all_written_next_to_those_of_the_attempt_before(topic: TopicAt) -> None:
    with pytest.raises(BrokenError):
        await asyncio.to_thread(write, topic, breaking(batches_of(data_of(3000)), after=2 * IN_FLIGHT_MAX))
    landed = await topic.data()
    written = await asyncio.to_thread(write, topic, batches_of(data_of(2000, other=5)))
    assert (written.appended, written.took_over) == (2000, True)
    everything = await topic.data()
    # What the first attempt had sent may still have come after it was looked at.
    assert everything[: len(landed)] == landed
    assert everything[-2000:] == data_of(2000, other=5)


async def test_other_rows_are_refused_on_request(topic: TopicAt) -> None:
    await asyncio.to_thread(write, topic, batches_of(data_of(500)))
    with pytest.raises(InvalidArgument, match="writer w: its rows, or their order, differ"):
        await asyncio.to_thread(write, topic, batches_of(data_of(500, other=3)), on_different="fail")
    assert await topic.data() == data_of(500)


async def test_an_attempt_whose_rows_end_too_soon_writes_nothing(topic: TopicAt) -> None:
    await asyncio.to_thread(write, topic, batches_of(data_of(500)))
    with pytest.raises(InvalidArgument, match="writer w: its rows end at 300, and an earlier attempt wrote 500"):
        await asyncio.to_thread(write, topic, batches_of(data_of(300)))
    await asyncio.to_thread(write, topic, batches_of(data_of(700)))
    assert await topic.data() == data_of(700)


async def test_attempts_at_the_same_time_write_the_same_rows_once(topic: TopicAt) -> None:
    barrier = threading.Barrier(3)

    def attempt(step: int, piece: int) -> WriteResult:
        return write(topic, paused(batches_of(data_of(6000), step=step), 3, barrier.wait), piece=piece)

    async with asyncio.TaskGroup() as group:
        for step, piece in ((100, 100), (70, 130), (111, 90)):
            group.create_task(asyncio.to_thread(attempt, step, piece))
    assert await topic.data() == data_of(6000)


async def test_an_attempt_with_other_rows_shuts_the_older_one_out(topic: TopicAt) -> None:
    half_way, taken_over = threading.Event(), threading.Event()

    def pause() -> None:
        half_way.set()
        taken_over.wait()

    older = paused(batches_of(data_of(4000)), 3 * IN_FLIGHT_MAX, pause)
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(asyncio.to_thread(pytest.raises, StaleFence, write, topic, older))
        await asyncio.to_thread(half_way.wait)
        try:
            newer = await asyncio.to_thread(write, topic, batches_of(data_of(4000, other=1)))
        finally:
            taken_over.set()
        raised = await writing
    assert newer.took_over
    assert "another attempt with other rows took over" in str(raised.value)
    assert (await topic.data())[-4000:] == data_of(4000, other=1)


async def test_micro_batches_follow_each_other_and_an_old_one_is_refused(topic: TopicAt) -> None:
    for run in (0, 0, 1, 4, 4):
        await asyncio.to_thread(write, topic, batches_of([b"%d" % run] * 150), run=run)
    assert await topic.data() == [b"0"] * 150 + [b"1"] * 150 + [b"4"] * 150
    with pytest.raises(InvalidArgument, match="micro-batch 4 was written, and this is 3: the checkpoint is older"):
        await asyncio.to_thread(write, topic, batches_of([b"3"]), run=3)


async def test_writers_of_one_topic_do_not_disturb_each_other(topic: TopicAt) -> None:
    async with asyncio.TaskGroup() as group:
        for name in ("a", "b", "c"):
            data = [f"{name}{index}".encode() for index in range(2000)]
            group.create_task(asyncio.to_thread(write, topic, batches_of(data), writer=name))
    found = await topic.data()
    assert len(found) == 6000
    for name in ("a", "b", "c"):
        assert [value for value in found if value.startswith(name.encode())] == [
            f"{name}{index}".encode() for index in range(2000)
        ]


async def test_a_topic_made_again_is_not_written_to(topic: TopicAt) -> None:
    with pytest.raises(EpochMismatch):
        await asyncio.to_thread(write, topic, batches_of(data_of(5)), epoch=topic.info().epoch + 1)
    assert await topic.data() == []


async def test_a_row_that_the_store_refuses_is_reported_with_its_ordinal(topic: TopicAt) -> None:
    data = [*data_of(250), bytes((1 << 20) + 1)]
    with pytest.raises(RecordTooLarge, match="writer w: row 250: data and meta have 1048577 bytes"):
        await asyncio.to_thread(write, topic, batches_of(data, step=250))
    # What came before it is there, and is not written again.
    assert await topic.data() == data_of(250)
    await asyncio.to_thread(write, topic, batches_of(data_of(251)))
    assert await topic.data() == data_of(251)


async def test_a_writer_that_something_else_moves_is_left_alone(topic: TopicAt) -> None:
    move = types_pb2.WriterPosition(writer="w", fence=9, new=b"theirs")
    rows = types_pb2.RecordBatch(records=[types_pb2.Record(data=b"theirs")])
    async with connect(topic.address) as client:
        store = LogServiceStub(client.channel_to(topic.address))
        await store.AppendRecords(log_pb2.AppendRecordsRequest(topic=topic.topic, rows=rows, writer=move))
    with pytest.raises(InvalidArgument, match="the position of writer w was not written by Spark"):
        await asyncio.to_thread(write, topic, batches_of(data_of(5)))
    assert await topic.data() == [b"theirs"]


async def test_a_store_that_is_killed_in_between_has_each_row_once(killable_store: KillableStore) -> None:
    topic = TopicAt(killable_store.address, "t")

    def kill() -> None:
        killable_store.kill()
        restarting.start()

    restarting = threading.Thread(target=killable_store.start)
    killable_store.start()
    topic.make()
    written = await asyncio.to_thread(write, topic, paused(batches_of(data_of(8000)), 3 * IN_FLIGHT_MAX, kill))
    restarting.join()
    assert IN_FLIGHT_MAX * PIECE <= written.appended <= 8000
    assert not written.took_over
    assert await topic.data() == data_of(8000)


async def test_a_store_that_stays_away_ends_the_write_in_its_time() -> None:
    topic = TopicAt("127.0.0.1:9", "t")
    with closing(
        ReplayableRows(batches_of(data_of(5)), records_max=PIECE, bytes_max=1 << 20, on_different="fail")
    ) as rows:
        with pytest.raises(EddylineError) as raised:
            await asyncio.to_thread(topic.write, rows, patience_s=0.5)
        assert raised.value.reason == "NOT_READY"
