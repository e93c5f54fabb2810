"""Streams of appends: answers in order, bounded in flight, the first failure ends it."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.client.append.append_stream import IN_FLIGHT_MAX
from eddyline.client.connect import Client
from eddyline.core.errors import CommitUnknown, HeadMismatch
from eddyline.core.records.record import Record
from tests.support.clients.clients import client_of
from tests.support.delivery.scripted_roles import ScriptedLog, scripted_server

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
