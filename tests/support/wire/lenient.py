"""A service that answers every request, gRPC or not, for tools that test HTTP/2 alone.

`python -m tests.support.wire.lenient` prints the port it listens on, and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import random
import sys
from typing import TYPE_CHECKING

from eddyline.wire.http2.hpack import STATUS_200, encode_field
from eddyline.wire.http2.limits import Limits
from eddyline.wire.transport.address import bind
from eddyline.wire.transport.listener import Listener
from eddyline.wire.transport.timeouts import Timeouts

if TYPE_CHECKING:
    from eddyline.wire.http2.errors import ErrorCode
    from eddyline.wire.http2.stream import Http2Stream
    from eddyline.wire.transport.connection import SocketConnection


class _Answer:
    """Answers at the end of the request."""

    def __init__(self, stream: Http2Stream) -> None:
        self._stream = stream

    def on_data(self, data: bytes) -> None:
        self._stream.consume(len(data))

    def on_end(self) -> None:
        self._stream.open(STATUS_200)
        self._stream.send(b"hello")
        self._stream.end(encode_field(b"x-end", b"yes"))

    def on_writable(self) -> None: ...

    def on_closed(self, code: ErrorCode | None) -> None: ...


class LenientService:
    """Answers every request."""

    def on_request(self, stream: Http2Stream, _connection: SocketConnection) -> None:
        stream.handler = _Answer(stream)

    def on_oversized(self, stream: Http2Stream, _connection: SocketConnection) -> None:
        stream.end(encode_field(b":status", b"431"))


async def main() -> None:
    """Serve."""
    listener = Listener(LenientService(), limits=Limits(), timeouts=Timeouts(), rng=random.Random(1))
    sockets = bind("127.0.0.1:0")
    listener.add(sockets, None)
    await listener.start()
    sys.stdout.write(f"{sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await listener.close()


if __name__ == "__main__":
    with asyncio.Runner() as runner:
        runner.run(main())
