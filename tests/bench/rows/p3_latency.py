"""P3: one durable append (FSYNC, one record of 100 bytes) at a time, p50 and p99 of the time until it is acknowledged.

Against one handler that writes and fdatasyncs the same message in the same kind of worker and sends it back (`bare_echo`).
AppendRecords against a unary call; AppendStream, beside it for the eye, against the same.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from eddyline.v1 import log_pb2, log_pb2_grpc, types_pb2
from tests.bench.baselines.bare_echo import APPEND
from tests.bench.harness import ROUNDS, Figure
from tests.bench.rows.p1_append import RECORD_BYTES, TOPIC, create_topic
from tests.support.cluster.processes import bare_server, store_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

APPENDS = 500
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
    with tempfile.TemporaryDirectory() as directory:
        async with (
            store_server(Path(directory) / "store") as store,
            bare_server("tests.bench.baselines.bare_echo", directory) as echo,
            grpc.aio.insecure_channel(store) as store_channel,
            grpc.aio.insecure_channel(echo) as echo_channel,
        ):
            await create_topic(store_channel)
            ours = log_pb2_grpc.LogServiceStub(store_channel)
            rows = types_pb2.RecordBatch(records=[types_pb2.Record(data=os.urandom(RECORD_BYTES))])
            request = log_pb2.AppendRecordsRequest(topic=TOPIC, rows=rows)
            message = request.SerializeToString()
            bare: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = echo_channel.unary_unary(APPEND)
            unary, stream, other = [], [], []
            for _ in range(ROUNDS + 1):
                unary.append(await latencies(lambda: ours.AppendRecords(request)))
                other.append(await latencies(lambda: bare(message)))
                stream.append(await stream_latencies(ours, log_pb2.AppendBatch(rows=rows)))
    bare_p50, bare_p99 = _medians(other)
    figures = []
    for name, seen in (("append_records", unary), ("append_stream", stream)):
        p50, p99 = _medians(seen)
        target = RATIO_MAX if seen is unary else None
        figures += [
            Figure("P3", f"{name}_p50", p50, "us", p50 / bare_p50, target, at_most=True),
            Figure("P3", f"{name}_p99", p99, "us", p99 / bare_p99, target, at_most=True),
        ]
    return [*figures, Figure("P3", "bare_p50", bare_p50, "us"), Figure("P3", "bare_p99", bare_p99, "us")]


def _medians(rounds: list[list[float]]) -> tuple[float, float]:
    """Medians of p50 and p99 over the rounds after the first."""
    p50 = statistics.median(seen[len(seen) // 2] for seen in rounds[1:])
    return p50, statistics.median(seen[len(seen) * 99 // 100] for seen in rounds[1:])
