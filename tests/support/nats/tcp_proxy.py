"""A TCP proxy in the test's loop that can be cut: open connections break, and new ones are refused until it is mended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

READ_BYTES: Final = 1 << 16
END_S: Final = 2.0


class RouteProxy:
    """A proxy from an address of its own to `target`, as `async with`."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._away = False
        self.address = ""

    async def __aenter__(self) -> RouteProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self.cut()
        self._server.close()
        await self._server.wait_closed()
        if self._serving:
            await asyncio.wait(self._serving, timeout=END_S)

    def cut(self) -> None:
        """Break open connections; refuse new ones."""
        self._away = True
        for writer in self._open:
            writer.transport.abort()

    def mend(self) -> None:
        """Accept connections again."""
        self._away = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._pass_on(reader, writer)
        finally:
            self._serving.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._away:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, far_writer}
        self._open |= both
        try:
            if self._away:
                return
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, far_writer))
                group.create_task(_pump(far_reader, writer))
        finally:
            self._open -= both
            for side in both:
                side.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until either side ends, which ends both."""
    try:
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.transport.abort()
