"""P4's baseline: the same hops, bare. JetStream ordered consumer -> unary call -> server stream -> server stream.

Four processes as in the cluster, raw bytes, no WAL, no fold, no cursors. `python -m tests.bench.baselines.bare_chain WIRE
ROLE …`: `store`; `delivery STORE`; `ingest STORE NATS SUBJECT`. Servers print their port. Handlers are coroutines on either
wire.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import grpc
import nats
import uvloop
from nats.js.api import DeliverPolicy

from tests.bench.baselines.bare_wire import make_server
from tests.bench.baselines.bare_wire import serve as serve_handlers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.aio.msg import Msg

APPLY = "/bench.Chain/Apply"
WATCH = "/bench.Chain/Watch"
QUEUE_FRAMES = 10_000


class FanOut:
    """Frames to every open stream."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[bytes]] = set()

    def send(self, frame: bytes) -> None:
        for queue in self._queues:
            queue.put_nowait(frame)

    async def apply(self, request: bytes, context: object) -> bytes:
        self.send(request)
        return b""

    async def watch(self, request: bytes, context: object) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUE_FRAMES)
        self._queues.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._queues.discard(queue)


async def serve(wire: str, fan_out: FanOut) -> grpc.aio.Server:
    server = make_server(wire)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Apply": grpc.unary_unary_rpc_method_handler(fan_out.apply),
        "Watch": grpc.unary_stream_rpc_method_handler(fan_out.watch),
    }
    await serve_handlers(server, {"bench.Chain": handlers})
    return server


async def store(wire: str) -> None:
    await (await serve(wire, FanOut())).wait_for_termination()


async def delivery(wire: str, store_address: str) -> None:
    fan_out = FanOut()
    server = await serve(wire, fan_out)
    async with grpc.aio.insecure_channel(store_address) as channel:
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(WATCH)
        async for frame in watch(b""):
            fan_out.send(frame)
    await server.stop(None)


async def ingest(store_address: str, nats_url: str, subject: str) -> None:
    gathered: list[bytes] = []
    wake = asyncio.Event()

    async def take(message: Msg) -> None:
        gathered.append(message.data)
        wake.set()

    client = await nats.connect(nats_url)
    await client.jetstream().subscribe(subject, cb=take, ordered_consumer=True, deliver_policy=DeliverPolicy.NEW)
    print(0, flush=True)
    async with grpc.aio.insecure_channel(store_address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(APPLY)
        while True:
            await wake.wait()
            wake.clear()
            while gathered:
                batch, gathered[:] = b"".join(gathered), []
                await call(batch)


if __name__ == "__main__":
    wire_name, role, *arguments = sys.argv[1:]
    if role == "store":
        uvloop.run(store(wire_name))
    elif role == "delivery":
        uvloop.run(delivery(wire_name, *arguments))
    else:
        uvloop.run(ingest(*arguments))
