"""A FollowTopics stream over a real server: steps, events, and its end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.core.codec.records import gap_to_pb
from eddyline.core.errors import InvalidArgument, StoreUnreachable
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason, Record
from eddyline.core.server.server import RawMethod, make_server
from eddyline.core.store_link.grpc import GrpcLink
from eddyline.core.store_link.grpc_follow import STEPS_MAX
from eddyline.core.store_link.protocol import FollowEnded, FollowItem, FollowLevel, FollowStarted
from eddyline.core.transport.channel import open_channel
from eddyline.v1 import apply_pb2, log_pb2, topic_pb2
from tests.support.manual_clock import settle
from tests.support.models.batches import batch_to_columns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from eddyline.core.server.server import RoleServer
    from eddyline.core.store_link.grpc_follow import GrpcFollow

    Requests = AsyncIterator[apply_pb2.FollowTopicsRequest]

PLACED = Batch.from_rows([Record(data=b"v")]).with_seqs(3, 1_000)
GAP = Gap(1, 2, GapReason.UNSYNCED, seq=2)
TOPIC = topic_pb2.Topic(name="t", epoch=4, kind=topic_pb2.TOPIC_KIND_LOG, head_seq=3, earliest_seq=1)


@asynccontextmanager
async def served(
    follow: Callable[[Requests, object], AsyncIterator[bytes]],
) -> AsyncIterator[tuple[RoleServer, GrpcLink]]:
    server = make_server("127.0.0.1:0")
    raw = RawMethod(follow, apply_pb2.FollowTopicsRequest.FromString, request_stream=True, response_stream=True)
    server.add_raw_methods("eddyline.v1.ApplyService", {"FollowTopics": raw})
    address = await server.start()
    try:
        async with open_channel(address, own_connection=True) as channel:
            yield server, GrpcLink(channel)
    finally:
        await server.stop(0)


async def echo_credit(requests: Requests, _context: object) -> AsyncIterator[bytes]:
    """Answers every step with a `level` event whose head is the step's number."""
    async for request in requests:
        number = request.credit_bytes or request.add.follow_id or request.remove.follow_id
        level = apply_pb2.FollowLevel(head_seq=number)
        yield apply_pb2.FollowTopicsResponse(follow_id=1, level=level).SerializeToString()


async def break_off(server: RoleServer, follow: GrpcFollow) -> None:
    """Stop a followed stream's server, and check that its iteration ends as unreachable."""
    await follow.grant(1)
    events = aiter(follow)
    await anext(events)
    await server.stop(0)
    with pytest.raises(StoreUnreachable):
        await anext(events)


async def test_steps_reach_the_store_in_order() -> None:
    steps: list[apply_pb2.FollowTopicsRequest] = []

    async def keep(requests: Requests, _context: object) -> AsyncIterator[bytes]:
        async for request in requests:
            steps.append(request)
            level = apply_pb2.FollowLevel(head_seq=len(steps))
            yield apply_pb2.FollowTopicsResponse(level=level).SerializeToString()

    async with served(keep) as (_, link), link.follow() as follow:
        await follow.grant(1 << 20)
        await follow.add(1, "t", epoch=4, after_seq=0)
        await follow.add(2, "u")
        await follow.remove(1)
        async for event in follow:
            if isinstance(event, FollowLevel) and event.head_seq == 4:
                break
    assert steps == [
        apply_pb2.FollowTopicsRequest(credit_bytes=1 << 20),
        apply_pb2.FollowTopicsRequest(add=apply_pb2.FollowAdd(follow_id=1, topic="t", epoch=4, after_seq=0)),
        apply_pb2.FollowTopicsRequest(add=apply_pb2.FollowAdd(follow_id=2, topic="u")),
        apply_pb2.FollowTopicsRequest(remove=apply_pb2.FollowRemove(follow_id=1)),
    ]
    assert steps[1].add.HasField("after_seq")
    assert not steps[2].add.HasField("after_seq")


async def test_every_event_is_translated_and_an_unknown_one_is_ignored() -> None:
    items = (log_pb2.BatchItem(gap=gap_to_pb(GAP)), log_pb2.BatchItem(columns=batch_to_columns(PLACED)))
    answers = [
        apply_pb2.FollowTopicsResponse(follow_id=1, started=apply_pb2.FollowStarted(topic=TOPIC, after_seq=0)),
        *(
            apply_pb2.FollowTopicsResponse(
                follow_id=1, item=apply_pb2.FollowItem(item=item, next_after_seq=seq, head_seq=3)
            )
            for item, seq in zip(items, (2, 3), strict=True)
        ),
        apply_pb2.FollowTopicsResponse(follow_id=1),
        apply_pb2.FollowTopicsResponse(follow_id=1, level=apply_pb2.FollowLevel(head_seq=3)),
        apply_pb2.FollowTopicsResponse(
            follow_id=1, ended=apply_pb2.FollowEnded(reason="TOPIC_NOT_FOUND", message="deleted")
        ),
    ]

    async def tell(_requests: Requests, _context: object) -> AsyncIterator[bytes]:
        for answer in answers:
            yield answer.SerializeToString()
        await asyncio.Event().wait()

    events = []
    async with served(tell) as (_, link), link.follow() as follow:
        async for event in follow:
            events.append(event)
            if isinstance(event, FollowEnded):
                break
    started, gap, batch, level, ended = events
    assert isinstance(started, FollowStarted)
    assert (started.topic.name, started.topic.epoch, started.after_seq) == ("t", 4, 0)
    assert gap == FollowItem(1, GAP, 2, 3)
    assert isinstance(batch, FollowItem)
    assert isinstance(batch.item, Batch)
    assert (batch.item.to_rows(), batch.next_after_seq) == (PLACED.to_rows(), 3)
    assert (level, ended) == (FollowLevel(1, 3), FollowEnded(1, "TOPIC_NOT_FOUND", "deleted"))


async def test_a_store_that_stops_ends_the_iteration_and_later_steps_as_unreachable() -> None:
    async with served(echo_credit) as (server, link), link.follow() as follow:
        await break_off(server, follow)
        with pytest.raises(StoreUnreachable):
            await follow.grant(2)


async def test_a_stream_that_the_store_ends_without_error_is_unreachable_too() -> None:
    async def brief(_requests: Requests, _context: object) -> AsyncIterator[bytes]:
        yield apply_pb2.FollowTopicsResponse(level=apply_pb2.FollowLevel(head_seq=1)).SerializeToString()

    async with served(brief) as (_, link), link.follow() as follow:
        with pytest.raises(StoreUnreachable):
            _ = [event async for event in follow]


async def test_the_store_s_error_for_a_wrong_step_keeps_its_class() -> None:
    async def refuse(requests: Requests, _context: object) -> AsyncIterator[bytes]:
        async for _ in requests:
            raise InvalidArgument("too much credit", field="credit_bytes")
        yield b""

    async with served(refuse) as (_, link), link.follow() as follow:
        await follow.grant(1 << 40)
        with pytest.raises(InvalidArgument):
            _ = [event async for event in follow]


async def test_leaving_the_stream_ends_it_at_the_store() -> None:
    ended = asyncio.Event()

    async def wait(requests: Requests, _context: object) -> AsyncIterator[bytes]:
        try:
            async for _ in requests:
                yield apply_pb2.FollowTopicsResponse(level=apply_pb2.FollowLevel(head_seq=1)).SerializeToString()
        finally:
            ended.set()

    async with served(wait) as (_, link):
        async with link.follow() as follow:
            await follow.grant(1)
            await anext(aiter(follow))
        await asyncio.wait_for(ended.wait(), 5)


async def test_a_step_that_is_cancelled_while_it_waits_for_room_leaves_the_stream_alive() -> None:
    go_on = asyncio.Event()

    async def late(requests: Requests, context: object) -> AsyncIterator[bytes]:
        await go_on.wait()
        async for answer in echo_credit(requests, context):
            yield answer

    async with served(late) as (_, link), link.follow() as follow, asyncio.TaskGroup() as tasks:
        filling = tasks.create_task(fill(follow.grant))
        await settle()
        assert not filling.done()
        filling.cancel()
        go_on.set()
        event = await anext(aiter(follow))
    assert filling.cancelled()
    assert isinstance(event, FollowLevel)


async def fill(grant: Callable[[int], Awaitable[None]]) -> None:
    for number in range(1, STEPS_MAX * 1000):
        await grant(number)


async def test_steps_that_wait_for_room_fail_when_the_stream_ends() -> None:
    async def silent(_requests: Requests, _context: object) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async with served(silent) as (server, link), link.follow() as follow:

        async def step(number: int) -> bool:
            try:
                await follow.add(number, "t" * 200)
            except StoreUnreachable:
                return True
            return False

        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(step(number)) for number in range(STEPS_MAX * 4)]
            await settle()
            assert not all(task.done() for task in waiting)
            await server.stop(0)
    assert any(task.result() for task in waiting)


async def test_nothing_of_a_broken_stream_is_left_running() -> None:
    async with served(echo_credit) as (server, link), link.follow() as follow:
        await break_off(server, follow)
    await settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}
