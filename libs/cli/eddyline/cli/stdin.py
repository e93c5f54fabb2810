"""Standard input as lines, without blocking the loop: a pipe or a terminal is waited for, a file is read line by line."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from typing import TYPE_CHECKING, Final

from eddyline.cli.failure import CommandError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

LINE_BYTES_MAX: Final = 4 << 20
"""A record of 1 MiB in base64 within a JSON line fits twice."""


async def stdin_lines() -> AsyncGenerator[bytes, None]:
    """Lines without their ends.

    Raises:
        CommandError: a line is too long.
    """
    if sys.stdin is None:  # closed by whoever started us
        return
    descriptor = sys.stdin.fileno()
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(descriptor)):
        # epoll takes no regular files and no /dev/null; reading them does not wait for anybody.
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")
        return
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    try:
        while True:
            try:
                line = await reader.readline()
            except ValueError:
                raise CommandError(f"a line is longer than {LINE_BYTES_MAX} bytes", "split it") from None
            if not line:
                return
            yield line.rstrip(b"\r\n")
    finally:
        transport.close()
