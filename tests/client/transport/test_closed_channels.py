"""A channel that closes under a call, after the cluster dropped its address: the caller gets an error and goes on at
another address. A task that is itself cancelled stays cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.client.connect import Client
from eddyline.client.read.fold import range_entries
from eddyline.client.transport.call import call_once, domain_errors
from eddyline.client.transport.topology import Channels, Topology
from eddyline.client.watch.events import Records
from eddyline.core.errors import NotReady
from eddyline.core.runtime.clock import SystemClock
from eddyline.v1 import log_pb2
from eddyline.v1.fold_pb2_grpc import FoldServiceStub
from eddyline.v1.log_pb2_grpc import LogServiceStub
from tests.support.clients.clients import NoJitter
from tests.support.delivery.scripted_roles import ScriptedDelivery, WatchScript, rows_frame, scripted_server
from tests.support.delivery.silent_server import mute

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from eddyline.client.watch.events import WatchEvent
    from eddyline.client.watch.watch import Watch
    from eddyline.core.errors import EddylineError


async def until_dialled(channel: grpc.aio.Channel) -> None:
    """Until a call is under way on it, as far as a mute peer lets it."""
    while (state := channel.get_state()) is not grpc.ChannelConnectivity.CONNECTING:
        await channel.wait_for_state_change(state)


async def lone_answer(channel: grpc.aio.Channel) -> None:
    await call_once(LogServiceStub(channel).ReadRecords(log_pb2.ReadRecordsRequest(topic="t"), timeout=30))


async def many_answers(channel: grpc.aio.Channel) -> None:
    async for _record in range_entries(
        FoldServiceStub(channel), "t", key_prefix=b"", after_key=b"", limit=1, min_seq=0
    ):
        raise AssertionError("nobody answers")


async def next_of(watch: Watch) -> WatchEvent | None:
    return await anext(watch, None)


@pytest.mark.parametrize("call", [lone_answer, many_answers])
async def test_a_call_whose_channel_is_closed_fails_as_one_whose_peer_went_away(
    call: Callable[[grpc.aio.Channel], Coroutine[object, object, None]],
) -> None:
    channels = Channels()
    with mute() as address:
        channel = channels.to(address)

        async def close() -> None:
            await until_dialled(channel)
            await channels.drop_all_but(())

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(close())
            with pytest.raises(NotReady):
                await call(channel)


async def test_a_watch_whose_channel_is_closed_goes_on_at_another_address() -> None:
    delivery = ScriptedDelivery([WatchScript([rows_frame("a", 1)])])
    channels = Channels()
    heard: list[EddylineError] = []
    with mute() as address:
        async with scripted_server(delivery=delivery) as alive, asyncio.TaskGroup() as tasks:
            deliveries = (address, alive)
            client = Client(
                Topology("test", (), (), deliveries), channels=channels, clock=SystemClock(), random_source=NoJitter(1)
            )
            async with client.watch("a", start="earliest", on_retry=heard.append) as events:
                first = tasks.create_task(next_of(events))
                await until_dialled(channels.to(address))
                await channels.drop_all_but({alive})
                assert isinstance(await first, Records)
            assert [error.reason for error in heard[:1]] == ["NOT_READY"]
    await channels.close()


async def test_a_watch_that_is_ended_while_it_is_read_ends_without_a_word() -> None:
    channels = Channels()
    heard: list[EddylineError] = []
    with mute() as address:
        async with asyncio.TaskGroup() as tasks:
            client = Client(
                Topology("test", (), (), (address,)), channels=channels, clock=SystemClock(), random_source=NoJitter(1)
            )
            watch = client.watch("a", start="earliest", on_retry=heard.append)
            first = tasks.create_task(next_of(watch))
            await until_dialled(channels.to(address))
            await watch.aclose()
            assert await first is None
            assert heard == []
    await channels.close()


async def test_a_task_that_is_cancelled_stays_cancelled() -> None:
    channels = Channels()
    with mute() as address:
        async with asyncio.TaskGroup() as tasks:
            channel = channels.to(address)
            waiting = tasks.create_task(lone_answer(channel))
            await until_dialled(channel)
            waiting.cancel()
            await channels.drop_all_but(())
            with pytest.raises(asyncio.CancelledError):
                await waiting


async def test_what_the_caller_raises_itself_stays() -> None:
    with pytest.raises(ValueError, match="its own"), domain_errors():
        raise ValueError("its own")
