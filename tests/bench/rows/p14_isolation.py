"""P14: isolation: what the others feel of one subscriber that stands still, of one that is far behind, and of a scan.

Ninety-nine subscribers of a topic get 50 appends a second of 10 records; measured are the 99th percentile of the time from
append to subscriber, and of the append itself. In turn without anything else (the baseline), with one more subscriber
that never reads, with one that reads a million records from the first on, again and again, with a reader that scans the
same million from the store, and with one that scans it by splits, eight streams at a time. Each disturber is a process of
its own.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np

from eddyline.v1 import log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.bench.harness import Figure, until_idle
from tests.bench.rows.p1_append import OPTIONS, RECORD_BYTES, columns
from tests.bench.watch_readers import STAMP
from tests.support.cluster.processes import delivery_server, process, store_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOPIC = "live"
OLD_TOPIC = "old"
OLD_BATCHES = 1_000
STREAMS = 99
RECORDS = 10
APPENDS = 250
PERIOD_S = 0.02
ROUNDS = 5
HEARTBEAT_MS = 60_000
READY_S_MAX = 30
ROUND_S_MAX = 60
DISTURBERS = {"": 0.0, "stopped": 1.2, "behind": 1.2, "scan": 1.5, "splits": 1.5}


@dataclass
class Seen:
    """The 99th percentiles of each round, in ms."""

    delivered: list[float] = field(default_factory=list)
    appended: list[float] = field(default_factory=list)


@dataclass
class Bench:
    """A store with the two topics, and its delivery."""

    store: str
    delivery: str
    channel: grpc.aio.Channel

    async def round(self, seen: Seen) -> None:
        """One round's two figures."""
        arguments = (self.delivery, TOPIC, str(STREAMS), str(APPENDS * RECORDS), str(HEARTBEAT_MS))
        async with asyncio.timeout(ROUND_S_MAX), process("tests.bench.watch_readers", *arguments) as readers:
            assert readers.stdout is not None
            assert await readers.stdout.readline() == b"ready\n"
            took = sorted([await self._append() for _ in range(APPENDS)])
            told = json.loads(await readers.stdout.readline())
        seen.delivered.append(told["p99_ms"])
        seen.appended.append(took[len(took) * 99 // 100])

    async def _append(self) -> float:
        """Append once, and rest; ms that the append took."""
        started_ns = time.monotonic_ns()
        values = STAMP.pack(started_ns) + bytes(RECORDS * RECORD_BYTES - STAMP.size)
        offsets = np.arange(0, (RECORDS + 1) * RECORD_BYTES, RECORD_BYTES, dtype="<u4").tobytes()
        data = types_pb2.BinaryColumn(offsets=offsets, values=values)
        request = log_pb2.AppendRecordsRequest(topic=TOPIC, columns=types_pb2.ColumnarBatch(count=RECORDS, data=data))
        await log_pb2_grpc.LogServiceStub(self.channel).AppendRecords(request)
        took_ms = (time.monotonic_ns() - started_ns) / 1e6
        await asyncio.sleep(max(0.0, PERIOD_S - took_ms / 1000))
        return took_ms

    @asynccontextmanager
    async def disturbed(self, kind: str) -> AsyncIterator[None]:
        """While something else is going on."""
        if not kind:
            yield
            return
        address, topic = (
            (self.store if kind in ("scan", "splits") else self.delivery),
            (TOPIC if kind == "stopped" else OLD_TOPIC),
        )
        async with process("tests.bench.disturber", kind, address, topic) as disturber:
            assert disturber.stdout is not None
            async with asyncio.timeout(READY_S_MAX):
                assert await disturber.stdout.readline() == b"ready\n"
            yield


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Bench]:
    """A store whose old topic has its million records in segments, and a delivery."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(store_server(directory / "store"))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(store, options=OPTIONS))
        for name in (TOPIC, OLD_TOPIC):
            topic = topic_pb2.Topic(name=name, kind=topic_pb2.TOPIC_KIND_LOG)
            await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        request = log_pb2.AppendRecordsRequest(topic=OLD_TOPIC, columns=columns())
        for _ in range(OLD_BATCHES):
            await log_pb2_grpc.LogServiceStub(channel).AppendRecords(request)
        await until_idle(channel)
        yield Bench(store, await stack.enter_async_context(delivery_server(store)), channel)


async def measure() -> list[Figure]:
    """The row's figures."""
    seen = {kind: Seen() for kind in DISTURBERS}
    with tempfile.TemporaryDirectory() as directory:
        async with cluster(Path(directory)) as bench:
            await bench.round(Seen())
            for _ in range(ROUNDS):
                for kind, of_kind in seen.items():
                    async with bench.disturbed(kind):
                        await bench.round(of_kind)
    figures = []
    for what in ("delivered", "appended"):
        alone = statistics.median(getattr(seen[""], what))
        figures.append(Figure("P14", f"{what}_p99_alone", alone, "ms"))
        for kind, target in DISTURBERS.items():
            if kind:
                p99 = statistics.median(getattr(seen[kind], what))
                figures.append(Figure("P14", f"{what}_p99_{kind}", p99, "ms", p99 / alone, target, at_most=True))
    return figures
