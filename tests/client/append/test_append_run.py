"""Runs of appends: each once, across failures; counts that are true; patience that ends."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from eddyline.client.append.append_run import NumberedRecord
from eddyline.core.errors import EddylineError, KeyRequired, NotReady
from eddyline.core.records.record import Record
from eddyline.v1 import log_pb2
from tests.support.clients.clients import client_of
from tests.support.delivery.scripted_roles import UnscriptedLog, scripted_server
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from eddyline.client.append.append_run import AppendRun
    from eddyline.core.runtime.clock import Clock


class LongestWait(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return b


@dataclass
class Broken:
    """One stream of the script: `stored` appends are stored, the first `answered` of them answered, then it fails."""

    stored: int
    answered: int
    error: EddylineError = field(default_factory=lambda: NotReady("going down"))


class DedupingLog(UnscriptedLog):
    """A log that remembers keys, as the store does; its first streams break as the script says."""

    def __init__(self, *script: Broken) -> None:
        self.script = list(script)
        self.keys: list[str] = []
        self.data: list[bytes] = []
        self.epochs: list[int] = []

    async def AppendStream(
        self, requests: AsyncIterator[log_pb2.AppendStreamRequest], context: object
    ) -> AsyncIterator[log_pb2.AppendStreamResponse]:
        broken = self.script.pop(0) if self.script else None
        count = 0
        async for request in requests:
            if request.WhichOneof("step") == "start":
                self.epochs.append(request.start.epoch)
                continue
            if broken is not None and count >= broken.stored:
                raise broken.error
            count += 1
            key = request.append.idempotency_key
            again = key in self.keys
            if not again:
                self.keys.append(key)
                self.data.append(request.append.rows.records[0].data)
            seq = self.keys.index(key) + 1
            if broken is None or count <= broken.answered:
                yield log_pb2.AppendStreamResponse(first_seq=seq, last_seq=seq, epoch=7, deduplicated=again)


@asynccontextmanager
async def running(
    log: DedupingLog, *, clock: Clock | None = None, jitter: random.Random | None = None
) -> AsyncIterator[tuple[AppendRun, list[str]]]:
    told: list[str] = []
    async with (
        scripted_server(log=log) as address,
        client_of(address, clock=clock, random_source=jitter) as client,
    ):
        yield (
            client.append_run(
                "t", run_id="run", on_away=lambda error: told.append(error.reason), on_back=lambda: told.append("back")
            ),
            told,
        )


async def numbered(*numbers: int) -> AsyncGenerator[NumberedRecord, None]:
    for number in numbers:
        yield NumberedRecord(number, Record(data=b"%d" % number))


async def test_each_is_stored_once_though_streams_break_with_answers_missing() -> None:
    log = DedupingLog(Broken(10, 4), Broken(3, 1), Broken(0, 0), Broken(0, 0))
    async with running(log) as (run, told):
        await run.run(numbered(*range(1, 101)))
    assert log.data == [b"%d" % number for number in range(1, 101)]
    assert log.keys[0] == "run-1"
    assert (run.acknowledged, run.acknowledged_number, run.first_seq, run.last_seq) == (100, 100, 1, 100)
    assert run.unknown_count == 0
    assert told == ["NOT_READY", "back"]
    assert log.epochs == [0, 7, 7, 7, 7]


async def test_acknowledgements_are_taken_as_they_arrive() -> None:
    log = DedupingLog()
    async with running(log) as (run, _):

        async def one_then_wait() -> AsyncGenerator[NumberedRecord, None]:
            yield NumberedRecord(1, Record(data=b"x"))
            while not run.acknowledged:  # noqa: ASYNC110 - a run tells its progress by its counts alone
                await asyncio.sleep(0)
            yield NumberedRecord(3, Record(data=b"y"))

        await run.run(one_then_wait())
    assert (run.acknowledged, run.acknowledged_number) == (2, 3)


async def test_refusal_ends_it_at_its_number_with_nothing_unknown() -> None:
    async with running(DedupingLog(Broken(5, 5, KeyRequired("a key is needed")))) as (run, told):
        with pytest.raises(KeyRequired):
            await run.run(numbered(*range(1, 7)))
    assert (run.acknowledged, run.next_number, run.unknown_count) == (5, 6, 0)
    assert told == []


async def test_patience_ends_and_what_was_in_flight_is_unknown() -> None:
    clock = ManualClock()
    script = [Broken(3, 2)] + [Broken(0, 0)] * 500
    async with running(DedupingLog(*script), clock=clock, jitter=LongestWait(1)) as (run, told):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(outcome(run))
            while not task.done():
                await asyncio.sleep(0)
                clock.advance(0.001)
        assert task.result() == "NOT_READY"
    assert run.acknowledged == 2
    assert run.unknown_count >= 1
    assert told == ["NOT_READY"]


async def outcome(run: AppendRun) -> str:
    try:
        await run.run(numbered(*range(1, 6)))
    except EddylineError as error:
        return error.reason
    return ""


async def test_error_of_the_input_is_raised_behind_what_came_before_it() -> None:
    async def breaking() -> AsyncGenerator[NumberedRecord, None]:
        yield NumberedRecord(1, Record(data=b"x"))
        raise ValueError("bad line")

    log = DedupingLog()
    async with running(log) as (run, _):
        with pytest.raises(ValueError, match="bad line"):
            await run.run(breaking())
    assert (run.acknowledged, log.data) == (1, [b"x"])


async def test_nothing_to_append_opens_no_stream() -> None:
    log = DedupingLog()
    async with running(log) as (run, _):
        await run.run(numbered())
    assert (run.acknowledged, log.epochs) == (0, [])
