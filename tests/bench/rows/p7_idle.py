"""P7: 10 000 idle watch streams: memory a stream, on each wire against bare ones that wait for an event (`bare_broadcast`).

Each side: a server, its resident memory, 10 000 streams opened by `watch_readers` over 8 connections, its memory again.
Ours each watch one topic from its tail, with a heartbeat a minute. Then what processor time ours takes while nothing
happens: no timer a stream means next to none.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import topic_pb2, topic_pb2_grpc
from tests.bench.baselines.bare_broadcast import write_frames
from tests.bench.harness import Figure
from tests.bench.sides import wires
from tests.support.cluster.process_figures import processor_s, resident_bytes
from tests.support.cluster.processes import delivery_at, free_address, process, store_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.bench.sides import Wire

TOPIC = "idle"
STREAMS = int(os.environ.get("EDDYLINE_BENCH_STREAMS") or 10_000)
HEARTBEAT_MS = 60_000
ROUNDS = 3
OPEN_S_MAX = 300
IDLE_S = 20
SURPLUS_BYTES_MAX = 8 << 10


@asynccontextmanager
async def opened(address: str) -> AsyncIterator[None]:
    """All streams are open and level."""
    arguments = (address, TOPIC, str(STREAMS), "0", str(HEARTBEAT_MS))
    async with process("tests.bench.watch_readers", *arguments) as readers:
        assert readers.stdout is not None
        async with asyncio.timeout(OPEN_S_MAX):
            assert await readers.stdout.readline() == b"ready\n"
        yield


async def ours(store: str, wire: Wire) -> tuple[float, float]:
    """Bytes a stream, and processor time in ms a second while idle."""
    address = free_address()
    async with delivery_at(address, store, EDDYLINE_COMMON_WIRE=wire) as delivery:
        before = resident_bytes(delivery.pid)
        async with opened(address):
            held = (resident_bytes(delivery.pid) - before) / STREAMS
            used_s = processor_s(delivery.pid)
            await asyncio.sleep(IDLE_S)
            return held, (processor_s(delivery.pid) - used_s) / IDLE_S * 1000


async def bare(frames: Path, wire: Wire) -> float:
    """Bytes a stream."""
    async with process("tests.bench.baselines.bare_broadcast", wire, str(frames)) as server:
        assert server.stdout is not None
        address = f"127.0.0.1:{int(await server.stdout.readline())}"
        before = resident_bytes(server.pid)
        async with opened(address):
            return (resident_bytes(server.pid) - before) / STREAMS


async def measure() -> list[Figure]:
    """The row's figures."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        frames = directory / "frames"
        write_frames(frames, [pb.WatchTopicsResponse(caught_up=pb.CaughtUp()).SerializeToString()])
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(store_server(directory / "store"))
            async with grpc.aio.insecure_channel(store) as channel:
                topic = topic_pb2.Topic(name=TOPIC, kind=topic_pb2.TOPIC_KIND_LOG)
                await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
            figures = []
            for wire in wires():
                rounds = [(*await ours(store, wire), await bare(frames, wire)) for _ in range(ROUNDS)]
                held, busy_ms, bare_held = (statistics.median(column) for column in zip(*rounds, strict=True))
                allowed, name = (bare_held + SURPLUS_BYTES_MAX) / bare_held, f"idle_stream_of_{STREAMS}_{wire}"
                figures += [
                    Figure("P7", name, held, "bytes", held / bare_held, allowed, at_most=True),
                    Figure("P7", f"bare_idle_stream_{wire}", bare_held, "bytes"),
                    Figure("P7", f"idle_processor_time_{wire}", busy_ms, "ms/s"),
                ]
    return figures
