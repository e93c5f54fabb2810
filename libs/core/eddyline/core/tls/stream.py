"""TLS on a connection that a server has accepted, by the ssl module in memory.

Elsewhere asyncio's own: there whoever connects is unknown to the server until the handshake is over, so that a bound on
connections does not count those that never end theirs. Here the handshake is part of serving a connection, under the same
bounds of number and time; and each connection goes by the context that is the newest when it comes, so that a renewed
certificate needs nothing.
Failure: OSError (ssl's errors are such), asyncio.IncompleteReadError, asyncio.LimitOverrunError.
Threading: event loop; the handshake's arithmetic, a millisecond or more, is done on a thread.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Final

_CHUNK_BYTES: Final = 16 << 10


class TlsStream:
    """One connection. Made by `adopt_stream`; whoever does closes the connection."""

    def __init__(self, context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._received = ssl.MemoryBIO()
        self._to_send = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)

    @classmethod
    async def accept(
        cls, context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> TlsStream:
        """Shake hands, however long that takes: the bound is the caller's."""
        stream = cls(context, reader, writer)
        while True:
            try:
                await asyncio.to_thread(stream._tls.do_handshake)
            except ssl.SSLWantReadError:
                await stream._receive()
            else:
                writer.write(stream._to_send.read())
                return stream

    async def readuntil(self, mark: bytes, *, bytes_max: int) -> bytes:
        """What is said up to `mark`, and maybe more."""
        said = b""
        while mark not in said:
            if len(said) > bytes_max:
                raise asyncio.LimitOverrunError("it does not end", len(said))
            try:
                found = self._tls.read(_CHUNK_BYTES)
            except ssl.SSLWantReadError:
                await self._receive()
                continue
            if not found:
                raise asyncio.IncompleteReadError(said, None)
            said += found
        return said

    def sealed(self, data: bytes) -> bytes:
        """All that is left to say, and that it is the end, as it is sent."""
        self._tls.write(data)
        with suppress(ssl.SSLWantReadError):  # the other side need not say that it is the end
            self._tls.unwrap()
        return self._to_send.read()

    async def _receive(self) -> None:
        self._writer.write(self._to_send.read())
        found = await self._reader.read(_CHUNK_BYTES)
        if not found:
            raise asyncio.IncompleteReadError(b"", None)
        self._received.write(found)
