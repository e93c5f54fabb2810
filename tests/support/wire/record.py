"""Records the bytes of a real client: `python -m tests.support.wire.record FILE` prints a port, serves the methods of
`echo_server.py` on it, and writes all that the first connection sends to FILE when it closes. The recordings of
`tests/golden/wire` were made so, with grpcio 1.85, grpc-go 1.85 and @grpc/grpc-js 1.14."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.support.wire.echo_server import echo_server


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray | None) -> None:
    while part := await reader.read(65_536):
        if record is not None:
            record += part
        writer.write(part)
        await writer.drain()
    writer.close()


async def main(file: Path) -> None:
    """Record one connection."""
    recorded = bytearray()
    done = asyncio.Event()

    async with echo_server() as server:

        async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", server.port)
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, back_writer, recorded))
                group.create_task(_copy(back_reader, writer, None))
            done.set()

        proxy = await asyncio.start_server(on_connect, "127.0.0.1", 0)
        sys.stdout.write(f"{proxy.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        await done.wait()
        proxy.close()
    await asyncio.get_running_loop().run_in_executor(None, file.write_bytes, bytes(recorded))


if __name__ == "__main__":
    with asyncio.Runner() as runner:
        runner.run(main(Path(sys.argv[1])))
