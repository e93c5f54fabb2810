"""P1's baseline: bare handlers for the same messages, coroutines on either wire. No engine.

It parses what a store parses, group-commits the message bytes with writev and fdatasync on one thread, and acknowledges.
Run as `python -m tests.bench.baselines.bare_append WIRE DIRECTORY`; prints its port.
"""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
import uvloop

from eddyline.v1 import log_pb2
from tests.bench.baselines.bare_wire import make_server, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.bench.baselines.bare_wire import Handlers

MESSAGE_BYTES = 64 << 20
WINDOW = 16


class GroupCommit:
    """Gathers buffers while one writev and fdatasync runs."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY)
        self._offset = 0
        self._staged: list[tuple[bytes, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1)

    def stage(self, data: bytes) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._staged.append((data, done))
        self._wake.set()
        return done

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._staged:
                group, self._staged = self._staged, []
                await loop.run_in_executor(self._thread, self._write, [data for data, _ in group])
                for _, done in group:
                    done.set_result(None)

    def _write(self, buffers: list[bytes]) -> None:
        if self._offset > 1 << 30:
            os.ftruncate(self._fd, 0)
            self._offset = 0
        self._offset += os.pwritev(self._fd, buffers, self._offset)
        os.fdatasync(self._fd)


class BareLog:
    """AppendRecords and AppendStream, bare."""

    def __init__(self, commit: GroupCommit) -> None:
        self._commit = commit
        self._seq = 0

    async def AppendRecords(
        self, request: log_pb2.AppendRecordsRequest, context: object
    ) -> log_pb2.AppendRecordsResponse:
        await self._commit.stage(request.columns.data.values)
        self._seq += request.columns.count
        return log_pb2.AppendRecordsResponse(last_seq=self._seq)

    async def AppendStream(
        self, requests: AsyncIterator[log_pb2.AppendStreamRequest], context: object
    ) -> AsyncIterator[log_pb2.AppendStreamResponse]:
        window: asyncio.Queue[asyncio.Future[None] | None] = asyncio.Queue(WINDOW)

        async def read() -> None:
            async for request in requests:
                if request.WhichOneof("step") == "append":
                    await window.put(self._commit.stage(request.append.columns.data.values))
            await window.put(None)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read())
            while (done := await window.get()) is not None:
                await done
                yield log_pb2.AppendStreamResponse()

    def handlers(self) -> Handlers:
        """The two calls of LogService, no more of it."""
        unary: grpc.RpcMethodHandler[log_pb2.AppendRecordsRequest, log_pb2.AppendRecordsResponse]
        unary = grpc.unary_unary_rpc_method_handler(
            self.AppendRecords,
            log_pb2.AppendRecordsRequest.FromString,
            log_pb2.AppendRecordsResponse.SerializeToString,
        )
        stream: grpc.RpcMethodHandler[log_pb2.AppendStreamRequest, log_pb2.AppendStreamResponse]
        stream = grpc.stream_stream_rpc_method_handler(
            self.AppendStream, log_pb2.AppendStreamRequest.FromString, log_pb2.AppendStreamResponse.SerializeToString
        )
        return {"AppendRecords": unary, "AppendStream": stream}


async def main(wire: str, directory: str) -> None:
    options = [("grpc.max_receive_message_length", MESSAGE_BYTES), ("grpc.max_send_message_length", MESSAGE_BYTES)]
    server = make_server(wire, options=options)
    commit = GroupCommit(os.path.join(directory, f"bare-{wire}.wal"))
    await serve(server, {"eddyline.v1.LogService": BareLog(commit).handlers()})
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(commit.run())
        await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
