"""A client of HTTP/2 by hand on a real socket, that gives and takes windows as a test says."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from eddyline.wire.http2 import frames
from tests.support.wire.frames import HELLO, Frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class RawClient:
    """Sends bytes, and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.frames: list[Frame] = []

    def send(self, *parts: bytes) -> None:
        """Send bytes."""
        self._writer.write(b"".join(parts))

    def abort(self) -> None:
        """Close the socket without a word."""
        self._writer.transport.abort()

    async def next_frame(self) -> Frame:
        """Read a frame."""
        header = await self._reader.readexactly(9)
        payload = await self._reader.readexactly(int.from_bytes(header[:3], "big"))
        frame = Frame(header[3], header[4], int.from_bytes(header[5:], "big"), payload)
        self.frames.append(frame)
        return frame

    async def until(self, fact: Callable[[Frame], bool]) -> Frame:
        """Read frames until one fits."""
        while not fact(frame := await self.next_frame()):
            pass
        return frame

    async def settle(self) -> None:
        """Read frames until the server has answered all that was sent before: a PING comes back."""
        self.send(frames.encode_ping(b"settle!!"))
        await self.until(lambda frame: frame.kind == frames.PING and frame.payload == b"settle!!")

    def data(self, stream_id: int) -> bytes:
        """Bytes of a stream that came so far."""
        kept = (one for one in self.frames if one.kind == frames.DATA and one.stream_id == stream_id)
        return b"".join(one.payload for one in kept)

    def credit(self, stream_id: int) -> int:
        """Credit that the server gave to a stream."""
        given = (one for one in self.frames if one.kind == frames.WINDOW_UPDATE and one.stream_id == stream_id)
        return sum(int.from_bytes(one.payload, "big") for one in given)

    def ended(self, stream_id: int) -> bool:
        """Whether the server has ended a stream."""
        return any(
            one.stream_id == stream_id and one.kind == frames.HEADERS and bool(one.flags & frames.END_STREAM)
            for one in self.frames
        )


@asynccontextmanager
async def raw_client(port: int) -> AsyncIterator[RawClient]:
    """Connect and say hello."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = RawClient(reader, writer)
    client.send(HELLO)
    try:
        yield client
    finally:
        client.abort()
