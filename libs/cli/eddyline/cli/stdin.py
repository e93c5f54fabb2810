"""Standard input as lines or as one value, without blocking the loop: a pipe or a terminal is waited for."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from eddyline.cli.failure import CommandError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

LINE_BYTES_MAX: Final = 4 << 20
"""A record of 1 MiB in base64 within a JSON line fits twice."""
CHUNK_BYTES: Final = 1 << 16


async def stdin_lines() -> AsyncGenerator[bytes, None]:
    """Lines without their ends.

    Raises:
        CommandError: a line is too long.
    """
    if sys.stdin is None:  # closed by whoever started us
        return
    if _is_file(sys.stdin.fileno()):
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")
        return
    async with _piped() as reader:
        while True:
            try:
                line = await reader.readline()
            except ValueError:
                raise CommandError(f"a line is longer than {LINE_BYTES_MAX} bytes", "split it") from None
            if not line:
                return
            yield line.rstrip(b"\r\n")


async def stdin_value(bytes_max: int) -> bytes:
    """All of standard input, as it is.

    Raises:
        CommandError: it is more than `bytes_max`.
    """
    found = bytearray()
    if sys.stdin is None:  # closed by whoever started us
        return b""
    if _is_file(sys.stdin.fileno()):
        found += sys.stdin.buffer.read(bytes_max + 1)
    else:
        async with _piped() as reader:
            while len(found) <= bytes_max and (some := await reader.read(CHUNK_BYTES)):
                found += some
    if len(found) > bytes_max:
        raise CommandError(f"standard input is longer than {bytes_max} bytes", "a value is that long at most")
    return bytes(found)


def _is_file(descriptor: int) -> bool:
    """True = epoll does not take it (regular files, /dev/null), and reading it does not wait for anybody."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(descriptor))


@asynccontextmanager
async def _piped() -> AsyncIterator[asyncio.StreamReader]:
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    try:
        yield reader
    finally:
        transport.close()
