"""P22's baseline: one process that sends each append on to all watchers of its topic. No log, no cursors, no interceptors.

It serves as much of the contract as the load client calls: CreateTopic and DeleteTopic, AppendStream with one append in a
step, and WatchTopics of one topic, from its end on. A frame is made once an append. On our own wire both streams go past
coroutines, as those of a store and a delivery do. Run as `python -m tests.bench.baselines.bare_fan_out WIRE ADDRESS`;
prints its port.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

import grpc
import uvloop

from eddyline.v1 import delivery_pb2, log_pb2
from eddyline.wire.calls.call import Call, send_to_all
from tests.bench.baselines.bare_wire import make_server, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.wire.calls.context import WireContext

QUEUE_FRAMES_MAX = 10_000
ANSWER = log_pb2.AppendStreamResponse(first_seq=1, last_seq=1).SerializeToString()
CAUGHT_UP = delivery_pb2.WatchTopicsResponse(caught_up=delivery_pb2.CaughtUp()).SerializeToString()


def frame_of(topic: str, append: log_pb2.AppendBatch) -> bytes:
    """The frame with an append's records."""
    return delivery_pb2.WatchTopicsResponse(topic=topic, columns=append.columns).SerializeToString()


def topic_of(request: bytes) -> str:
    """The topic of a watch."""
    return delivery_pb2.WatchTopicsRequest.FromString(request).topics[0].topic


async def accept(_request: bytes, _context: object) -> bytes:
    """Make or delete a topic: there is nothing to do."""
    return b""


class Coroutines:
    """The streams on grpc.aio."""

    def __init__(self) -> None:
        self._queues: defaultdict[str, set[asyncio.Queue[bytes]]] = defaultdict(set)

    async def append(self, requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        """Take an AppendStream."""
        topic = ""
        async for request in requests:
            step = log_pb2.AppendStreamRequest.FromString(request)
            if step.WhichOneof("step") == "start":
                topic = step.start.topic
                continue
            frame = frame_of(topic, step.append)
            for queue in self._queues[topic]:
                queue.put_nowait(frame)
            yield ANSWER

    async def watch(self, request: bytes, _context: object) -> AsyncIterator[bytes]:
        """Send a WatchTopics."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUE_FRAMES_MAX)
        queues = self._queues[topic_of(request)]
        queues.add(queue)
        try:
            yield CAUGHT_UP
            while True:
                yield await queue.get()
        finally:
            queues.discard(queue)


class PastCoroutines:
    """The streams on our own wire."""

    def __init__(self) -> None:
        self._watchers: defaultdict[str, list[Call]] = defaultdict(list)

    async def append(self, _requests: object, context: WireContext) -> None:
        """Take an AppendStream."""
        topic, ended, call = "", asyncio.Event(), context.call

        def take(message: bytes) -> bool:
            nonlocal topic
            step = log_pb2.AppendStreamRequest.FromString(message)
            if step.WhichOneof("step") == "start":
                topic = step.start.topic
                return True
            frame = frame_of(topic, step.append)
            for watcher in send_to_all(self._watchers[topic], frame):
                watcher.send(frame)
            call.send(ANSWER)
            return True

        call.receive(take, ended.set)
        await ended.wait()

    async def watch(self, request: bytes, context: WireContext) -> None:
        """Send a WatchTopics."""
        watchers = self._watchers[topic_of(request)]
        context.call.send(CAUGHT_UP)
        watchers.append(context.call)
        try:
            await asyncio.Event().wait()
        finally:
            watchers.remove(context.call)


async def main(wire: str, address: str) -> None:
    """Serve until stopped."""
    server = make_server(wire)
    streams = PastCoroutines() if wire == "own" else Coroutines()
    unary: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(accept)
    append: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(streams.append)
    watch: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(streams.watch)
    services = {
        "eddyline.v1.TopicService": {"CreateTopic": unary, "DeleteTopic": unary},
        "eddyline.v1.LogService": {"AppendStream": append},
        "eddyline.v1.DeliveryService": {"WatchTopics": watch},
    }
    await serve(server, services, listen=address)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
