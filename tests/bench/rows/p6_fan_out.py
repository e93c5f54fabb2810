"""P6: one topic to 1, 100 and 1 000 subscribers, on each wire against a bare broadcast of like frames (`bare_broadcast`).

A round of ours: subscribers open their streams (`watch_readers`), then so many batches of 1 000 records of 100 bytes are
appended over one AppendStream, 8 in flight; the time is from the first frame at any subscriber to the last at all. A round
of the baseline sends frames recorded from such a stream of ours to as many streams of the same reader. Rounds in turn;
sides: `tests.bench.sides`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.bench.baselines.bare_broadcast import GO, write_frames
from tests.bench.harness import in_turn
from tests.bench.rows.p1_append import IN_FLIGHT, OPTIONS, RECORDS, columns
from tests.bench.sides import NOT_WORSE_MIN, bare_processes, our_sides, side_figures
from tests.bench.watch_readers import WATCH
from tests.support.cluster.processes import delivery_at, free_address, process, store_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.bench.harness import Figure
    from tests.bench.sides import Bare, Side

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

    async def read(self, streams: int, batches: int) -> float:
        """Measure a round."""
        return await read_while(self.delivery, streams, batches, partial(self.append, batches))

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
async def cluster(directory: Path, side: Side) -> AsyncIterator[Ours]:
    """A store with the topic, and a delivery."""
    delivery = free_address()
    async with (
        store_process(directory / side.name, python=side.python, **side.settings) as (_, store),
        grpc.aio.insecure_channel(store, options=OPTIONS) as channel,
        delivery_at(delivery, store, python=side.python, **side.settings),
    ):
        topic = topic_pb2.Topic(name=TOPIC, kind=topic_pb2.TOPIC_KIND_LOG)
        await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        yield Ours(channel, delivery)


async def measure() -> list[Figure]:
    """The row's figures."""
    figures: list[Figure] = []
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clusters = {side: await stack.enter_async_context(cluster(directory, side)) for side in our_sides()}
        for streams, batches in STREAMS.items():
            write_frames(directory / "frames", await next(iter(clusters.values())).record(batches))
            works: dict[Side, Callable[[], Awaitable[float]]]
            works = {side: partial(ours.read, streams, batches) for side, ours in clusters.items()}
            baseline = bare_processes("tests.bench.baselines.bare_broadcast", str(directory / "frames"))
            async with baseline as running:
                works |= {side: partial(read_bare, bare, streams, batches) for side, bare in running.items()}
                seen = await in_turn(works)
            rates = {side: statistics.median(of) for side, of in seen.items()}
            figures += side_figures(
                *("P6", f"fan_out_to_{streams}", "records/s", rates),
                target=RATIO_MIN[streams],
                not_worse=NOT_WORSE_MIN,
            )
    return figures


async def read_bare(bare: Bare, streams: int, batches: int) -> float:
    """Measure a round of the baseline."""
    return await read_while(bare.address, streams, batches, partial(go, bare.address))


async def go(address: str) -> None:
    """Let the baseline's streams run."""
    async with grpc.aio.insecure_channel(address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(GO)
        await call(b"")
