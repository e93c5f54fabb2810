"""P21: single durable appends (FSYNC, one record of 100 bytes): in flight from one client, from 16 clients, and alone.

Against handlers on a server of the same wire that take the same messages, group-commit them and answer (`bare_echo`). Each
figure is the server's processor time an append, with its ratio to the baseline's; the rates of both are printed beside it.
`several` sends what waits in one message, as clients that gather do, with the same messages to the baseline. `client_append`
and `client_stream` are the Python client's own calls: the store's processor time, and the rate with the client's. Sides:
`tests.bench.sides`; before takes one append in a message.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import grpc

from eddyline.client.connect import connect
from eddyline.core.records.record import Record
from eddyline.core.store_link.append_steps import step_of_one, step_of_several
from eddyline.v1 import log_pb2, types_pb2
from tests.bench.baselines.bare_echo import APPEND_GROUP, APPEND_STREAM
from tests.bench.harness import Figure, in_turn, scaled
from tests.bench.rows.p1_append import RECORD_BYTES, TOPIC, create_topic, idle
from tests.bench.sides import bare_processes, our_sides, side_figures
from tests.support.cluster.process_figures import fine_processor_s
from tests.support.cluster.processes import store_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from eddyline.client.connect import Client
    from tests.bench.sides import Side

IN_FLIGHT = 256
CLIENTS = 16
APPENDS = scaled(4_096, multiple_of=IN_FLIGHT)
LONE_APPENDS = scaled(500)
LOG = "/eddyline.v1.LogService/"
LOCAL_POOL = (("grpc.use_local_subchannel_pool", 1),)
"""A connection for each channel: those of one address and equal options share theirs."""
RATIO_MAX = 1.3
MESSAGES_MAX = 2
"""Messages on their way while others gather."""


class Round(NamedTuple):
    """One round: the server's processor time an append, and appends a second; of lone appends the p50."""

    us: float
    rate: float
    p50_us: float = 0.0


class Target(NamedTuple):
    """A server: its process, a channel for each client, and the names of its two calls. `client` = the Python client's, if
    the server takes what it gathers."""

    pid: int
    channels: Sequence[grpc.aio.Channel]
    unary: str
    stream: str
    start: bytes
    client: Client | None = None


async def timed(pid: int, work: Awaitable[object], appends: int = APPENDS) -> Round:
    """Measure `work`, which makes `appends` appends."""
    began_s, used_s = time.perf_counter(), fine_processor_s(pid)
    await work
    return Round((fine_processor_s(pid) - used_s) / appends * 1e6, appends / (time.perf_counter() - began_s))


class Stream:
    """One stream of raw messages to a server."""

    def __init__(self, target: Target, channel: grpc.aio.Channel) -> None:
        calls: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(target.stream)
        self.call = calls()
        self._start = target.start

    async def open(self) -> None:
        """Send the first step, where the server has one."""
        if self._start:
            await self.call.write(self._start)

    async def one_by_one(self, message: bytes, appends: int, in_flight: int) -> list[float]:
        """Send messages, at most `in_flight` without an answer; the time of each until it, in us."""
        slots, began, seen = asyncio.Semaphore(in_flight), list[int](), list[float]()

        async def write() -> None:
            for _ in range(appends):
                await slots.acquire()
                began.append(time.perf_counter_ns())
                await self.call.write(message)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            for number in range(appends):
                await self.call.read()
                seen.append((time.perf_counter_ns() - began[number]) / 1e3)
                slots.release()
        return seen

    async def gathered(self, append: bytes, appends: int, in_flight: int) -> None:
        """Send `in_flight` appends in two messages; each answer makes room for another message of as many."""
        size = in_flight // MESSAGES_MAX
        message = step_of_several([append] * size)
        await self.one_by_one(message, appends // size, MESSAGES_MAX)

    async def close(self) -> None:
        """End it."""
        await self.call.done_writing()
        while await self.call.read() is not grpc.aio.EOF:
            pass


async def stream_round(target: Target, step: bytes, *, clients: int, in_flight: int, appends: int = APPENDS) -> Round:
    """Appends over a stream of each client, one in a message."""
    streams = [Stream(target, channel) for channel in target.channels[:clients]]
    for stream in streams:
        await stream.open()
        await stream.one_by_one(step, 1, 1)
    seen: list[float] = []

    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one.one_by_one(step, appends // clients, in_flight)) for one in streams]
        for task in running:
            seen.extend(task.result())

    measured = await timed(target.pid, work(), appends // clients * clients)
    for stream in streams:
        await stream.close()
    return measured._replace(p50_us=statistics.median(seen))


async def several_round(target: Target, append: bytes) -> Round:
    """Appends over one stream, as many in a message as wait."""
    stream = Stream(target, target.channels[0])
    await stream.open()
    await stream.one_by_one(step_of_one(append), 1, 1)
    size = IN_FLIGHT // MESSAGES_MAX
    measured = await timed(target.pid, stream.gathered(append, APPENDS * 4, IN_FLIGHT), APPENDS * 4 // size * size)
    await stream.close()
    return measured


async def unary_round(target: Target, message: bytes, *, clients: int, appends: int = APPENDS) -> Round:
    """Appends by a call each, one in flight from each client."""
    seen: list[float] = []

    async def client(channel: grpc.aio.Channel) -> None:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(target.unary)
        for _ in range(appends // clients):
            began = time.perf_counter_ns()
            await call(message)
            seen.append((time.perf_counter_ns() - began) / 1e3)

    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            for channel in target.channels[:clients]:
                tasks.create_task(client(channel))

    measured = await timed(target.pid, work(), appends // clients * clients)
    return measured._replace(p50_us=statistics.median(seen))


async def client_append_round(target: Target) -> Round:
    """`client.append` by 256 tasks."""
    record, client = [Record(data=os.urandom(RECORD_BYTES))], target.client
    assert client is not None

    async def caller() -> None:
        for _ in range(APPENDS // IN_FLIGHT):
            await client.append(TOPIC, record)

    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(caller())

    return await timed(target.pid, work(), APPENDS // IN_FLIGHT * IN_FLIGHT)


async def client_stream_round(target: Target) -> Round:
    """`client.append_stream`, as fast as it takes them."""
    record, client = [Record(data=os.urandom(RECORD_BYTES))], target.client
    assert client is not None

    async def work() -> None:
        async with client.append_stream(TOPIC) as stream:
            for _ in range(APPENDS * 4):
                await stream.append(record)

    return await timed(target.pid, work(), APPENDS * 4)


async def targets(stack: AsyncExitStack, directory: Path) -> dict[Side, Target]:
    """The stores, each with the topic, and the baselines."""
    start = log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic=TOPIC)).SerializeToString()
    found: dict[Side, Target] = {}
    for side in our_sides():
        started, address = await stack.enter_async_context(
            store_process(directory / side.name, python=side.python, **side.settings)
        )
        channels, client = await _channels(stack, address), None
        if not side.is_before:
            client = await stack.enter_async_context(connect(address, random_source=random.Random(1)))
        await create_topic(channels[0])
        found[side] = Target(started.pid, channels, LOG + "AppendRecords", LOG + "AppendStream", start, client)
    running = await stack.enter_async_context(bare_processes("tests.bench.baselines.bare_echo", str(directory)))
    for side, bare in running.items():
        channels = await _channels(stack, bare.address)
        found[side] = Target(bare.pid, channels, APPEND_GROUP, APPEND_STREAM, b"")
    return found


async def _channels(stack: AsyncExitStack, address: str) -> list[grpc.aio.Channel]:
    return [
        await stack.enter_async_context(grpc.aio.insecure_channel(address, options=LOCAL_POOL)) for _ in range(CLIENTS)
    ]


async def measure() -> list[Figure]:
    """The row's figures: medians over the rounds, which are taken in turn."""
    rows = types_pb2.RecordBatch(records=[types_pb2.Record(data=os.urandom(RECORD_BYTES))])
    append = log_pb2.AppendBatch(rows=rows).SerializeToString()
    request = log_pb2.AppendRecordsRequest(topic=TOPIC, rows=rows).SerializeToString()
    step = step_of_one(append)
    plans: dict[str, Callable[[Target], Awaitable[Round]]] = {
        "stream_256": lambda at: stream_round(at, step, clients=1, in_flight=IN_FLIGHT),
        "several_256": lambda at: several_round(at, append),
        "client_append_256": client_append_round,
        "client_stream": client_stream_round,
        "stream_16": lambda at: stream_round(at, step, clients=CLIENTS, in_flight=1),
        "unary_16": lambda at: unary_round(at, request, clients=CLIENTS),
        "stream_1": lambda at: stream_round(at, step, clients=1, in_flight=1, appends=LONE_APPENDS),
        "unary_1": lambda at: unary_round(at, request, clients=1, appends=LONE_APPENDS),
    }
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        found = await targets(stack, Path(directory))
        stores = [target.channels[0] for side, target in found.items() if not side.is_bare]
        works: dict[tuple[str, Side], Callable[[], Awaitable[Round]]] = {
            (name, side): partial(plan, target)
            for name, plan in plans.items()
            for side, target in found.items()
            if _takes(name, side, target)
        }
        seen = await in_turn(works, prepare=partial(idle, stores))
    figures = []
    for name in plans:
        rounds = {side: of for (plan_name, side), of in seen.items() if plan_name == name}
        figures += _figures(name, rounds)
    return figures


def _takes(name: str, side: Side, target: Target) -> bool:
    """True = the plan can be run there."""
    if name.startswith("client"):
        return target.client is not None
    return not (side.is_before and name.startswith("several"))


def _figures(name: str, seen: dict[Side, list[Round]]) -> list[Figure]:
    # The baseline's message has 128 appends, so its time an append is that of nothing but the message.
    target = None if name.startswith("several") else RATIO_MAX
    us, rate, p50 = (
        {side: statistics.median(one[column] for one in rounds) for side, rounds in seen.items()} for column in range(3)
    )
    figures = side_figures("P21", f"{name}_us", "us", us, target=target, at_most=True)
    figures += side_figures("P21", f"{name}_rate", "appends/s", rate)
    if name.endswith("_1"):
        figures += side_figures("P21", f"{name}_p50", "us", p50, target=RATIO_MAX, at_most=True)
    return figures
