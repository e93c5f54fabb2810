"""Standard input as lines or as one value, without blocking the loop: a pipe or a terminal is waited for. Files as values.

A line ends with LF or CRLF, and a UTF-8 byte order mark before the first line is passed over: neither is part of a line. One
value is all bytes as they are.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import stat
import sys
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from eddyline.cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator
    from pathlib import Path

LINE_BYTES_MAX: Final = 4 << 20
"""A record of 1 MiB in base64 within a JSON line fits twice."""
CHUNK_BYTES: Final = 1 << 16
DASH_REFUSED: Final = (
    "a VALUE of - is not accepted: leave VALUE out to read standard input (a dash as value: printf - | … --file -)"
)
"""Most commands read standard input for `-`: who means that would find a dash stored and the input dropped."""


class LineTooLong(CommandError):
    """A line of standard input has more than `LINE_BYTES_MAX` bytes."""

    def __init__(self) -> None:
        super().__init__(f"a line is longer than {LINE_BYTES_MAX} bytes", "split it")


async def stdin_lines(skip: int = 0) -> AsyncGenerator[bytes, None]:
    """Lines without their ends, after the first `skip` lines, which may have any length.

    Raises:
        LineTooLong. CommandError: standard input cannot be read.
    """
    number = 0
    async with aclosing(_raw_lines()) as lines:
        async for line in lines:
            number += 1
            if number <= skip:
                continue
            if len(line) > LINE_BYTES_MAX:
                raise LineTooLong
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if text.endswith(b"\n"):
                text = text[:-1].removesuffix(b"\r")
            yield text


async def _raw_lines() -> AsyncGenerator[bytes, None]:
    """Yield lines with their ends; of a line above `LINE_BYTES_MAX` only its first bytes, still above that bound."""
    if sys.stdin is None:  # closed by whoever started us
        return
    if _is_file(sys.stdin.fileno()):
        with _reported():
            while line := sys.stdin.buffer.readline(LINE_BYTES_MAX + 1):
                yield line
                while len(line) > LINE_BYTES_MAX and not line.endswith(b"\n"):
                    line = sys.stdin.buffer.readline(LINE_BYTES_MAX + 1)
                    if not line:
                        break
        return
    async with _piped() as reader:
        while True:
            line = await _piped_line(reader)
            if not line:
                return
            yield line


async def _piped_line(reader: asyncio.StreamReader) -> bytes:
    first = b""
    while True:
        try:
            line = await reader.readuntil()
        except asyncio.IncompleteReadError as end:
            line = end.partial
        except asyncio.LimitOverrunError as overrun:
            some = await reader.readexactly(overrun.consumed)
            first = first or some[: LINE_BYTES_MAX + 1]
            continue
        return first or line


async def stdin_value(bytes_max: int) -> bytes:
    """All of standard input, as it is.

    Raises:
        CommandError: it is more than `bytes_max`, or cannot be read.
    """
    found = bytearray()
    if sys.stdin is None:  # closed by whoever started us
        return b""
    if _is_file(sys.stdin.fileno()):
        with _reported():
            found += sys.stdin.buffer.read(bytes_max + 1)
    else:
        async with _piped() as reader:
            while len(found) <= bytes_max and (some := await reader.read(CHUNK_BYTES)):
                found += some
    if len(found) > bytes_max:
        raise _value_too_long("standard input", bytes_max)
    return bytes(found)


async def value_of(path: Path, bytes_max: int) -> bytes:
    """All bytes of a file as they are; `-` is standard input.

    Raises:
        CommandError: they are more than `bytes_max`, or cannot be read.
    """
    if str(path) == "-":
        return await stdin_value(bytes_max)
    try:
        with path.open("rb") as file:
            content = file.read(bytes_max + 1)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(content) > bytes_max:
        raise _value_too_long(str(path), bytes_max)
    return content


def _value_too_long(what: str, bytes_max: int) -> CommandError:
    advice = "that is the maximum of a value: split it, or store a reference to the data"
    return CommandError(f"{what} is longer than {bytes_max} bytes", advice)


def _is_file(descriptor: int) -> bool:
    """True = epoll does not take it (regular files, /dev/null), and reading it does not wait for anybody."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (stat.S_ISCHR(mode) and not os.isatty(descriptor))


@contextmanager
def _reported() -> Iterator[None]:
    """A read, its failure as a command's."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"standard input cannot be read: {error.strerror or error}") from None


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
