"""P6's and P7's baseline: a bare grpc.aio server that sends the same frames to every stream. No topics, no cursors.

`python -m tests.bench.baselines.bare_broadcast FRAMES`: a file of frames, each after its length in 4 bytes, little-endian;
the first goes to a stream when it opens, the others to all streams when GO is called. Prints its port.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import uvloop

from tests.bench.watch_readers import WATCH

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STREAMS_MAX = 100_000
"""gRPC's own limit refuses some of 10 000 that come at once."""
GO = "/bench.Broadcast/Go"
LENGTH = struct.Struct("<I")


def write_frames(path: Path, frames: list[bytes]) -> None:
    """Make the file."""
    path.write_bytes(b"".join(LENGTH.pack(len(frame)) + frame for frame in frames))


def read_frames(path: Path) -> list[bytes]:
    """Read the file."""
    data = path.read_bytes()
    frames = []
    at = 0
    while at < len(data):
        (length,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size
        frames.append(data[at : at + length])
        at += length
    return frames


class Broadcast:
    """The streams."""

    def __init__(self, frames: list[bytes]) -> None:
        self._hello, *self._frames = frames
        self._going = asyncio.Event()

    async def go(self, _request: bytes, _context: object) -> bytes:
        """Let every open stream run."""
        self._going.set()
        self._going = asyncio.Event()
        return b""

    async def watch(self, _request: bytes, _context: object) -> AsyncIterator[bytes]:
        """One stream."""
        going = self._going
        yield self._hello
        await going.wait()
        for frame in self._frames:
            yield frame


async def main(path: Path) -> None:
    """Serve until stopped."""
    broadcast = Broadcast(read_frames(path))
    pending = ("grpc.server.max_pending_requests", "grpc.server.max_pending_requests_hard_limit")
    server = grpc.aio.server(options=[(name, STREAMS_MAX) for name in pending])
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        WATCH: grpc.unary_stream_rpc_method_handler(broadcast.watch),
        GO: grpc.unary_unary_rpc_method_handler(broadcast.go),
    }
    for path_of, handler in handlers.items():
        service, _, method = path_of[1:].partition("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
