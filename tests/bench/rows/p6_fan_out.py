"""P6: one topic to 1, 100 and 1 000 subscribers, against a bare broadcast of the same frames (`bare_broadcast`).

A round of ours: subscribers open their streams (`watch_readers`), then so many batches of 1 000 records of 100 bytes are
appended over one AppendStream, 8 in flight; the time is from the first frame at any subscriber to the last at all. A round
of the baseline sends frames recorded from such a stream of ours to as many streams of the same reader. Rounds in turn.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.bench.baselines.bare_broadcast import GO, write_frames
from tests.bench.harness import Figure, alternate
from tests.bench.rows.p1_append import IN_FLIGHT, OPTIONS, RECORDS, columns
from tests.bench.watch_readers import WATCH
from tests.support.cluster.processes import delivery_server, process, store_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

TOPIC = "fan-out"
STREAMS = {1: 500, 100: 40, 1_000: 4}
"""Batches a round by subscribers: 0.5 M, 4 M and 4 M records delivered."""
RATIO_MIN = {1: None, 100: 0.8, 1_000: 0.8}
"""With one subscriber the time is that of the appends, which the baseline has not: only shown."""
HEARTBEAT_MS = 60_000
ROUND_S_MAX = 120


@dataclass
class Ours:
    """A store, a delivery, and who appends."""

    channel: grpc.aio.Channel
    delivery: str

    async def append(self, batches: int) -> None:
        """Append so many batches, 8 in flight."""
        step = log_pb2.AppendStreamRequest(append=log_pb2.AppendBatch(columns=columns()))
        slots = asyncio.Semaphore(IN_FLIGHT)

        async def steps() -> AsyncIterator[log_pb2.AppendStreamRequest]:
            yield log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic=TOPIC))
            for _ in range(batches):
                await slots.acquire()
                yield step

        async for _ in log_pb2_grpc.LogServiceStub(self.channel).AppendStream(steps()):
            slots.release()

    async def record(self, batches: int) -> list[bytes]:
        """The frames that one subscriber gets of so many batches, `caught_up` first."""
        watch: grpc.aio.UnaryStreamMultiCallable[pb.WatchTopicsRequest, bytes]
        frames: list[bytes] = []
        async with grpc.aio.insecure_channel(self.delivery, options=OPTIONS) as channel:
            watch = channel.unary_stream(WATCH, request_serializer=pb.WatchTopicsRequest.SerializeToString)
            wanted = pb.WatchTopic(topic=TOPIC, point=pb.START_POINT_TAIL)
            seen = 0
            async for frame in watch(pb.WatchTopicsRequest(topics=[wanted], format=types_pb2.BATCH_FORMAT_COLUMNS)):
                frames.append(frame)
                if len(frames) == 1:
                    await self.append(batches)
                seen += pb.WatchTopicsResponse.FromString(frame).columns.count
                if seen == batches * RECORDS:
                    break
        return frames


async def read_while(address: str, streams: int, batches: int, send: Callable[[], Awaitable[object]]) -> float:
    """Records delivered a second to so many subscribers of `address`, while `send` brings the batches."""
    arguments = (address, TOPIC, str(streams), str(batches * RECORDS), str(HEARTBEAT_MS))
    async with asyncio.timeout(ROUND_S_MAX), process("tests.bench.watch_readers", *arguments) as readers:
        assert readers.stdout is not None
        assert await readers.stdout.readline() == b"ready\n"
        await send()
        told = json.loads(await readers.stdout.readline())
    return float(streams * batches * RECORDS / told["seconds"])


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Ours]:
    """A store with the topic, and a delivery."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(store_server(directory / "store"))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(store, options=OPTIONS))
        topic = topic_pb2.Topic(name=TOPIC, kind=topic_pb2.TOPIC_KIND_LOG)
        await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        yield Ours(channel, await stack.enter_async_context(delivery_server(store)))


async def measure() -> list[Figure]:
    """The row's figures."""
    figures = []
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        async with cluster(directory) as ours:
            for streams, batches in STREAMS.items():
                write_frames(directory / "frames", await ours.record(batches))
                async with bare_server(directory / "frames") as bare:
                    ours_rate, bare_rate = await alternate(
                        lambda n=streams, b=batches: read_while(ours.delivery, n, b, lambda: ours.append(b)),  # type: ignore[misc]
                        lambda n=streams, b=batches, at=bare: read_while(at, n, b, lambda: go(at)),  # type: ignore[misc]
                    )
                name = f"fan_out_to_{streams}"
                figures.append(Figure("P6", name, ours_rate, "records/s", ours_rate / bare_rate, RATIO_MIN[streams]))
                figures.append(Figure("P6", f"bare_to_{streams}", bare_rate, "records/s"))
    return figures


@asynccontextmanager
async def bare_server(frames: Path) -> AsyncIterator[str]:
    """The baseline; its address."""
    async with process("tests.bench.baselines.bare_broadcast", str(frames)) as started:
        assert started.stdout is not None
        yield f"127.0.0.1:{int(await started.stdout.readline())}"


async def go(address: str) -> None:
    """Let the baseline's streams run."""
    async with grpc.aio.insecure_channel(address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(GO)
        await call(b"")
