"""Streams of appends: answers in order, bounded in flight, the first failure ends it."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.client.append.gathered_call import ALONE_BYTES_MIN, IN_FLIGHT_MAX
from eddyline.client.connect import Client
from eddyline.core.errors import CommitUnknown, HeadMismatch
from eddyline.core.records.record import Record
from tests.support.clients.clients import client_of
from tests.support.delivery.scripted_roles import ScriptedLog, scripted_server
from tests.support.manual_clock import settle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def appending(log: ScriptedLog) -> AsyncIterator[Client]:
    async with scripted_server(log=log) as address, client_of(address, random_source=random.Random(1)) as client:
        yield client


def record(number: int) -> Record:
    return Record(data=b"%d" % number)


async def test_answers_come_in_order_and_leaving_waits_for_all() -> None:
    log = ScriptedLog()
    async with appending(log) as client:
        async with client.append_stream("t") as stream:
            sent = [await stream.append([record(number)], idempotency_key=f"k{number}") for number in range(20)]
            assert (await sent[7]).last_seq == 8
            assert all(acknowledgement.done for acknowledgement in sent[:8])
        assert [acknowledgement.result.first_seq for acknowledgement in sent if acknowledgement.result] == [
            *range(1, 21)
        ]
        assert (stream.acknowledged, stream.first_seq, stream.last_seq) == (20, 1, 20)
    assert [append.idempotency_key for append in log.appends] == [f"k{number}" for number in range(20)]


async def test_appends_that_wait_go_in_one_message_once_the_server_takes_them() -> None:
    log = ScriptedLog(appends_max=256)
    async with appending(log) as client:
        async with client.append_stream("t") as stream:
            await (await stream.append([record(0)]))
            sent = [await stream.append([record(number)], idempotency_key=f"k{number}") for number in range(1, 301)]
            await stream.flush()
        assert [acknowledgement.result.first_seq for acknowledgement in sent if acknowledgement.result] == [
            *range(2, 302)
        ]
    assert not log.starts[0].independent
    assert (log.messages[0], sum(log.messages)) == (1, 301)
    assert len(log.messages) < 10
    assert [append.idempotency_key for append in log.appends[1:]] == [f"k{number}" for number in range(1, 301)]


async def test_server_bounds_the_appends_of_a_message() -> None:
    log = ScriptedLog(appends_max=3)
    async with appending(log) as client, client.append_stream("t") as stream:
        for number in range(50):
            await stream.append([record(number)])
    assert max(log.messages) == 3


async def test_older_server_gets_each_append_alone() -> None:
    log = ScriptedLog()
    async with appending(log) as client:
        async with client.append_stream("t") as stream:
            for number in range(100):
                await stream.append([record(number)])
        assert stream.acknowledged == 100
    assert log.messages == [1] * 100


async def test_large_appends_go_alone_among_small_ones() -> None:
    log = ScriptedLog(appends_max=256)
    large = Record(data=bytes(ALONE_BYTES_MIN))
    async with appending(log) as client, client.append_stream("t") as stream:
        await (await stream.append([record(0)]))
        for _ in range(3):
            for one in (record(1), record(2), large):
                await stream.append([one])
    assert log.messages == [1, 2, 1, 2, 1, 2, 1]
    assert [len(append.rows.records[0].data) for append in log.appends][3::3] == [ALONE_BYTES_MIN] * 3


async def test_failure_within_a_message_leaves_the_appends_before_it_acknowledged() -> None:
    log = ScriptedLog(appends_max=256, acks=5, failure=HeadMismatch("moved", headSeq=3))
    async with appending(log) as client:
        with pytest.raises(HeadMismatch):
            async with client.append_stream("t") as stream:
                sent = [await stream.append([record(0)])]
                await sent[0]
                sent += [await stream.append([record(number)]) for number in range(1, 12)]
                await stream.flush()
    assert log.messages[1] > 4
    assert [acknowledgement.result is not None for acknowledgement in sent] == [True] * 5 + [False] * 7
    assert stream.acknowledged == 5


async def test_task_that_stops_waiting_for_an_append_ends_nothing() -> None:
    log = ScriptedLog(appends_max=256, held=asyncio.Event())
    async with appending(log) as client, client.append_stream("t") as stream:
        first = await stream.append([record(1)])
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(first._outcome())
            await settle()
            waiting.cancel()
        assert log.held is not None
        log.held.set()
        assert (await (await stream.append([record(2)]))).first_seq == 2
        assert (await first).first_seq == 1


async def test_what_is_in_flight_is_bounded() -> None:
    async with appending(ScriptedLog()) as client, client.append_stream("t") as stream:
        sent = [await stream.append([record(number)]) for number in range(IN_FLIGHT_MAX + 5)]
        assert [acknowledgement.done for acknowledgement in sent].count(False) <= IN_FLIGHT_MAX


async def test_first_failure_ends_the_stream_and_what_came_before_it_stands() -> None:
    async with appending(ScriptedLog(acks=3, failure=HeadMismatch("moved", headSeq=3))) as client:
        with pytest.raises(HeadMismatch) as caught:
            async with client.append_stream("t") as stream:
                sent = [await stream.append([record(number)]) for number in range(6)]
                await stream.flush()
    assert caught.value.head_seq == 3
    assert stream.acknowledged == 3
    assert [acknowledgement.result is not None for acknowledgement in sent] == [True] * 3 + [False] * 3
    assert all(isinstance(acknowledgement.error, HeadMismatch) for acknowledgement in sent[3:])


async def test_append_after_a_failure_is_refused() -> None:
    async with appending(ScriptedLog(acks=0, failure=CommitUnknown("who knows"))) as client:
        with pytest.raises(CommitUnknown):
            async with client.append_stream("t") as stream:
                with pytest.raises(CommitUnknown):
                    await (await stream.append([record(1)]))
                await stream.append([record(2)])


async def test_failure_is_raised_on_leaving_even_without_an_await() -> None:
    async with appending(ScriptedLog(acks=1, failure=CommitUnknown("who knows"))) as client:
        with pytest.raises(CommitUnknown):
            async with client.append_stream("t") as stream:
                await stream.append([record(1)])
                await stream.append([record(2)])
