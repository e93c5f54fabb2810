"""Subscribers as a process: many watch streams of one topic, read as fast as they come. For P6, P7 and P14.

`python -m tests.bench.watch_readers ADDRESS TOPIC STREAMS RECORDS HEARTBEAT_MS`. Prints `ready` once every stream has
received its caught-up event. Then one JSON object: of a round, once each stream has had RECORDS records, `seconds` between
the first and the last of all; where records begin with the time they were sent (8 bytes, little-endian, of the machine's
monotonic clock in ns), `p50_ms` and `p99_ms` of what passed since, one value a frame. RECORDS 0 = reads until it is
stopped.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time

import grpc
import uvloop

from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import types_pb2

WATCH = "/eddyline.v1.DeliveryService/WatchTopics"
CHANNELS_MAX = 8
OPENING_MAX = 200
STAMP = struct.Struct("<q")
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 << 20))


class Readers:
    """Counts over all streams."""

    def __init__(self, streams: int, records: int) -> None:
        self._left_level = streams
        self._left_done = streams
        self._records = records
        self.level = asyncio.Event()
        self.done = asyncio.Event()
        self.first_ns = 0
        self.last_ns = 0
        self.waited_ns: list[int] = []

    async def read(
        self, call: grpc.aio.UnaryStreamCall[pb.WatchTopicsRequest, bytes], opening: asyncio.Semaphore
    ) -> None:
        """One stream to its end."""
        frames = aiter(call)
        seen = 0
        async with opening:
            async for first in frames:
                if pb.WatchTopicsResponse.FromString(first).HasField("caught_up"):
                    break
        self._left_level -= 1
        if not self._left_level:
            self.level.set()
        async for frame in frames:
            columns = pb.WatchTopicsResponse.FromString(frame).columns
            if not columns.count:
                continue
            now_ns = time.monotonic_ns()
            self.first_ns = self.first_ns or now_ns
            seen += columns.count
            self.waited_ns.append(now_ns - STAMP.unpack_from(columns.data.values)[0])
            if seen == self._records:
                break
        self.last_ns = time.monotonic_ns()
        self._left_done -= 1
        if not self._left_done:
            self.done.set()

    def told(self) -> str:
        """The line for who started us."""
        waited = sorted(self.waited_ns)
        return json.dumps(
            {
                "seconds": (self.last_ns - self.first_ns) / 1e9,
                "p50_ms": waited[len(waited) // 2] / 1e6,
                "p99_ms": waited[len(waited) * 99 // 100] / 1e6,
            }
        )


async def main(address: str, topic: str, streams: int, records: int, heartbeat_ms: int) -> None:
    """Open, read, tell."""
    wanted = pb.WatchTopic(topic=topic, point=pb.START_POINT_TAIL)
    request = pb.WatchTopicsRequest(topics=[wanted], format=types_pb2.BATCH_FORMAT_COLUMNS, heartbeat_ms=heartbeat_ms)
    readers = Readers(streams, records)
    opening = asyncio.Semaphore(OPENING_MAX)
    channels = [grpc.aio.insecure_channel(address, options=OPTIONS) for _ in range(min(streams, CHANNELS_MAX))]
    async with asyncio.TaskGroup() as tasks:
        for number in range(streams):
            watch: grpc.aio.UnaryStreamMultiCallable[pb.WatchTopicsRequest, bytes]
            watch = channels[number % len(channels)].unary_stream(
                WATCH, request_serializer=pb.WatchTopicsRequest.SerializeToString
            )
            tasks.create_task(readers.read(watch(request), opening))
        await readers.level.wait()
        print("ready", flush=True)
        await readers.done.wait()
    print(readers.told(), flush=True)
    for channel in channels:
        await channel.close()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])))
