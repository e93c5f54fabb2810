"""Appends of many callers: those of one topic in flight at once share messages, and nothing else."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.client.append.shared_streams import IDLE_S_MAX, STREAMS_MAX
from eddyline.client.connect import connect
from eddyline.core.errors import Deadline, EddylineError, HeadMismatch, NotReady, VersionMismatch
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Gap, Record
from eddyline.core.runtime.clock import SystemClock
from tests.support.clients.clients import client_of
from tests.support.delivery.scripted_roles import ScriptedLog, scripted_server
from tests.support.manual_clock import ManualClock
from tests.support.store.served import served_store, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.client.append.gathered_call import GatheredCall
    from eddyline.client.connect import Client
    from eddyline.core.store_link.protocol import AppendResult


@asynccontextmanager
async def appending(log: ScriptedLog) -> AsyncIterator[Client]:
    async with scripted_server(log=log) as address, client_of(address, random_source=random.Random(1)) as client:
        yield client


async def outcome(client: Client, number: int, topic: str = "t", **given: object) -> AppendResult | EddylineError:
    """What becomes of one append with the key `k<number>`."""
    try:
        return await client.append(topic, [Record(data=b"%d" % number)], idempotency_key=f"k{number}", **given)  # type: ignore[arg-type]
    except EddylineError as error:
        return error


async def outcomes(client: Client, count: int, topic: str = "t") -> list[AppendResult | EddylineError]:
    """Those of `count` appends at once."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(outcome(client, number, topic)) for number in range(count)]
    return [task.result() for task in running]


def stream_of(client: Client, topic: str = "t") -> GatheredCall:
    """The stream of the client's appends to a topic."""
    assert client._streams is not None
    call = client._streams._lanes[topic].call
    assert call is not None
    return call


def keys(log: ScriptedLog) -> list[str]:
    return sorted([call.idempotency_key for call in log.calls] + [append.idempotency_key for append in log.appends])


async def test_one_after_the_other_goes_by_calls() -> None:
    log = ScriptedLog(appends_max=256)
    async with appending(log) as client:
        for number in range(5):
            assert not isinstance(await outcome(client, number), EddylineError)
    assert (len(log.calls), log.appends) == (5, [])


async def test_those_at_once_share_messages_and_each_has_its_own_result() -> None:
    log = ScriptedLog(appends_max=256)
    async with appending(log) as client:
        results = await outcomes(client, 200)
        again = await outcomes(client, 200)
    assert log.starts[0].independent
    assert len(log.starts) == 1
    assert keys(log) == sorted([f"k{number}" for number in range(200)] * 2)
    assert len(log.messages) < 20
    seqs = [result.first_seq for result in [*results, *again] if not isinstance(result, EddylineError)]
    assert sorted(seqs) == list(range(1, 401))


async def test_refusal_of_one_is_no_other_ones() -> None:
    log = ScriptedLog(appends_max=256, refused={f"k{number}": HeadMismatch("moved", headSeq=4) for number in (3, 50)})
    async with appending(log) as client:
        results = await outcomes(client, 100)
    errors = {number: result for number, result in enumerate(results) if isinstance(result, EddylineError)}
    assert set(errors) == {3, 50}
    assert all(isinstance(error, HeadMismatch) and error.head_seq == 4 for error in errors.values())


@pytest.mark.parametrize("refused", [{}, {"k1": HeadMismatch("moved", headSeq=4)}], ids=["all done", "one refused"])
async def test_older_server_gets_calls(refused: dict[str, EddylineError]) -> None:
    log = ScriptedLog(refused=refused)
    async with appending(log) as client:
        results = await outcomes(client, 30)
        assert [number for number, result in enumerate(results) if isinstance(result, EddylineError)] == [
            int(key[1:]) for key in refused
        ]
        opened = len(log.starts)
        await outcomes(client, 30)
        assert len(log.starts) <= opened + bool(refused)
    assert set(log.messages) == {1}
    assert len(log.messages) <= 2


async def test_what_was_not_sent_when_the_stream_ended_goes_by_calls() -> None:
    log = ScriptedLog(appends_max=256, failure=NotReady("going down"), acks=0)
    async with appending(log) as client:
        results = await outcomes(client, 20)
    assert not [result for result in results if isinstance(result, EddylineError)]
    assert set(keys(log)) == {f"k{number}" for number in range(20)}


async def test_append_that_comes_too_late_is_a_deadline_and_ends_nothing() -> None:
    log = ScriptedLog(appends_max=256)
    async with appending(log) as client:
        await outcomes(client, 4)
        log.held = asyncio.Event()
        late = await outcome(client, 9, timeout_s=0.05)
        assert isinstance(late, Deadline)
        log.held.set()
        assert not isinstance(await outcome(client, 10), EddylineError)
    assert len(log.starts) == 1


async def test_cancelled_append_that_was_not_sent_is_withdrawn() -> None:
    log = ScriptedLog(appends_max=256)
    async with appending(log) as client:
        await outcomes(client, 4)
        log.held = asyncio.Event()
        before = len(log.messages)
        async with asyncio.TaskGroup() as tasks:
            sent = [tasks.create_task(outcome(client, 10))]
            await until(lambda: len(log.messages) > before)
            sent.append(tasks.create_task(outcome(client, 11)))
            await until(lambda: (stream_of(client)._sent_appends, stream_of(client).in_flight) == (2, 2))
            waiting = [tasks.create_task(outcome(client, 20 + number)) for number in range(3)]
            await until(lambda: stream_of(client).in_flight == 5)
            waiting[1].cancel()
            await asyncio.wait([waiting[1]])
            log.held.set()
        assert waiting[1].cancelled()
        assert not [task for task in [*sent, waiting[0], waiting[2]] if isinstance(task.result(), EddylineError)]
    assert log.messages[before:] == [1, 1, 2]
    assert "k21" not in keys(log)


async def test_streams_are_bounded_and_the_idle_one_of_longest_ago_ends() -> None:
    log = ScriptedLog(appends_max=256)
    async with appending(log) as client:
        for number in range(STREAMS_MAX + 4):
            assert not [r for r in await outcomes(client, 8, f"t{number}") if isinstance(r, EddylineError)]
    assert [start.topic for start in log.starts] == [f"t{number}" for number in range(STREAMS_MAX + 4)]


async def test_stream_that_is_not_used_ends_and_the_next_appends_at_once_open_another() -> None:
    log, clock = ScriptedLog(appends_max=256), ManualClock()
    async with scripted_server(log=log) as address, client_of(address, clock=clock) as client:
        for opened in (1, 2):
            await outcomes(client, 8)
            clock.advance(IDLE_S_MAX / 2)
            assert not isinstance(await outcome(client, 9), EddylineError)
            await clock.pass_time(IDLE_S_MAX * 2)
            assert len(log.starts) == opened


async def test_leaving_the_client_ends_its_streams_with_appends_under_way() -> None:
    log = ScriptedLog(appends_max=256)

    async def ended(client: Client) -> None:
        with pytest.raises(NotReady):
            await client.append("t", [Record(data=b"x")])

    async with scripted_server(log=log) as address, asyncio.TaskGroup() as tasks:
        async with client_of(address) as client:
            await outcomes(client, 4)
            log.held = asyncio.Event()
            before = len(log.messages)
            running = tasks.create_task(ended(client))
            await until(lambda: len(log.messages) > before)
        await asyncio.wait([running])
        log.held.set()


async def test_topic_that_was_made_again_takes_appends_of_a_stream_that_knew_the_old_one(tmp_path: Path) -> None:
    async with (
        served_store(tmp_path / "store") as store,
        connect(store.address, clock=SystemClock(), random_source=random.Random(1)) as client,
    ):
        for _ in range(2):
            await client.create_topic("t", Kind.LOG)
            results = await outcomes(client, 20)
            assert sorted(r.first_seq for r in results if not isinstance(r, EddylineError)) == list(range(1, 21))
            await client.delete_topic("t")


async def test_conditions_and_keys_hold_as_they_do_by_calls(tmp_path: Path) -> None:
    async with (
        served_store(tmp_path / "store") as store,
        connect(store.address, clock=SystemClock(), random_source=random.Random(1)) as client,
    ):
        await client.create_topic("kv", Kind.KV)
        async with asyncio.TaskGroup() as tasks:
            puts = [tasks.create_task(client.put("kv", b"k%d" % n, b"v", idempotency_key=f"p{n}")) for n in range(40)]
        assert {(await client.get("kv", b"k%d" % n)).data for n in range(40)} == {b"v"}  # type: ignore[union-attr]
        async with asyncio.TaskGroup() as tasks:
            again = [tasks.create_task(client.put("kv", b"k%d" % n, b"v", idempotency_key=f"p{n}")) for n in range(40)]
        assert [task.result().first_seq for task in again] == [task.result().first_seq for task in puts]
        assert all(task.result().deduplicated for task in again)
        with pytest.raises(VersionMismatch):
            await client.put("kv", b"k1", b"w", expected_version=b"")
        await client.create_topic("log", Kind.LOG)
        results = await outcomes(client, 50, "log")
        items = [item async for item in client.read("log")]
        stored = {item.seq: item.data for item in items if not isinstance(item, Gap)}
        assert [stored[r.first_seq] for r in results if not isinstance(r, EddylineError)] == [
            b"%d" % number for number in range(50)
        ]


async def test_appends_of_rows_and_of_columns_share_a_stream_whole(tmp_path: Path) -> None:
    async with (
        served_store(tmp_path / "store") as store,
        connect(store.address, clock=SystemClock(), random_source=random.Random(1)) as client,
    ):
        await client.create_topic("log", Kind.LOG)
        given = [[Record(data=b"%d/%d" % (number, at)) for at in range(1 + number % 12)] for number in range(48)]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(client.append("log", records)) for records in given]
        items = [item async for item in client.read("log")]
        stored = {item.seq: item.data for item in items if not isinstance(item, Gap)}
        for records, task in zip(given, running, strict=True):
            seqs = range(task.result().first_seq, task.result().last_seq + 1)
            assert [stored.pop(seq) for seq in seqs] == [record.data for record in records]
        assert not stored
