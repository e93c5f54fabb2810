"""P6's and P7's baseline: coroutines on either wire that send the same frames to every stream. No topics, no cursors.

`python -m tests.bench.baselines.bare_broadcast WIRE FRAMES`: a file of frames, each after its length in 4 bytes, little-
endian; the first goes to a stream when it opens, the others to all streams when GO is called. Prints its port.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import uvloop

from tests.bench.baselines.bare_wire import make_server, serve
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


async def main(wire: str, path: Path) -> None:
    """Serve until stopped."""
    broadcast = Broadcast(read_frames(path))
    pending = ("grpc.server.max_pending_requests", "grpc.server.max_pending_requests_hard_limit")
    server = make_server(wire, options=[(name, STREAMS_MAX) for name in pending])
    watch: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(broadcast.watch)
    go: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(broadcast.go)
    services = {}
    for path_of, handler in ((WATCH, watch), (GO, go)):
        service, _, method = path_of[1:].partition("/")
        services[service] = {method: handler}
    await serve(server, services)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], Path(sys.argv[2])))
