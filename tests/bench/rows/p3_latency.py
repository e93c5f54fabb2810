"""P3: one durable append (FSYNC, one record of 100 bytes) at a time, p50 and p99 of the time until it is acknowledged.

Against one handler that writes and fdatasyncs the same message in the same kind of worker and sends it back (`bare_echo`),
on each wire. AppendRecords against a unary call; AppendStream, beside it for the eye, against the same. Sides:
`tests.bench.sides`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from eddyline.v1 import log_pb2, log_pb2_grpc, types_pb2
from tests.bench.baselines.bare_echo import APPEND
from tests.bench.harness import Figure, in_turn, scaled
from tests.bench.rows.p1_append import RECORD_BYTES, TOPIC, create_topic
from tests.bench.sides import bare_processes, our_sides, side_figures
from tests.support.cluster.processes import store_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.bench.sides import Side

APPENDS = scaled(500)
RATIO_MAX = 1.5


async def latencies(append: Callable[[], Awaitable[object]]) -> list[float]:
    """Of one round of appends, in us, ascending."""
    seen = []
    for _ in range(APPENDS):
        started = time.perf_counter_ns()
        await append()
        seen.append((time.perf_counter_ns() - started) / 1e3)
    return sorted(seen)


async def stream_latencies(stub: log_pb2_grpc.LogServiceStub, batch: log_pb2.AppendBatch) -> list[float]:
    """Of one round over one AppendStream, each append after the answer to the one before."""
    steps: asyncio.Queue[log_pb2.AppendStreamRequest | None] = asyncio.Queue(1)

    async def requests() -> AsyncIterator[log_pb2.AppendStreamRequest]:
        while (step := await steps.get()) is not None:
            yield step

    await steps.put(log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic=TOPIC)))
    answers = aiter(stub.AppendStream(requests()))
    step = log_pb2.AppendStreamRequest(append=batch)

    async def append() -> None:
        await steps.put(step)
        await anext(answers)

    await append()
    seen = await latencies(append)
    await steps.put(None)
    return seen


async def measure() -> list[Figure]:
    """The row's figures: medians over the rounds, which are taken in turn."""
    rows = types_pb2.RecordBatch(records=[types_pb2.Record(data=os.urandom(RECORD_BYTES))])
    request = log_pb2.AppendRecordsRequest(topic=TOPIC, rows=rows)
    batch, message = log_pb2.AppendBatch(rows=rows), request.SerializeToString()
    works: dict[tuple[str, Side], Callable[[], Awaitable[list[float]]]] = {}
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        for side in our_sides():
            folder = Path(directory, side.name)
            _, address = await stack.enter_async_context(store_process(folder, python=side.python, **side.settings))
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
            await create_topic(channel)
            stub = log_pb2_grpc.LogServiceStub(channel)
            works["append_records", side] = partial(latencies, partial(stub.AppendRecords, request))
            works["append_stream", side] = partial(stream_latencies, stub, batch)
        running = await stack.enter_async_context(bare_processes("tests.bench.baselines.bare_echo", directory))
        for side, bare in running.items():
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(bare.address))
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(APPEND)
            works["append_records", side] = partial(latencies, partial(call, message))
        seen = await in_turn(works)
    figures = []
    for name in ("append_records", "append_stream"):
        target = RATIO_MAX if name == "append_records" else None
        rounds = {side: of for (call_name, side), of in seen.items() if call_name == name or side.is_bare}
        for part, per_100 in (("p50", 50), ("p99", 99)):
            values = {side: percentile(of, per_100) for side, of in rounds.items()}
            figures += side_figures("P3", f"{name}_{part}", "us", values, target=target, at_most=True)
    return figures


def percentile(rounds: list[list[float]], per_100: int) -> float:
    """The median over rounds, each ascending, of one percentile."""
    return statistics.median(seen[len(seen) * per_100 // 100] for seen in rounds)
