"""The baseline of P3 and P21: handlers that write what they get and fdatasync it on one thread, then answer. No engine.

`Append` takes a message a call, each with its own write, and is P3's. `AppendGroup` is the same call with group commit:
what came during a write is the next one. `AppendStream` takes a message after another, 16 ahead of its answers, with group
commit. All take any bytes and send them back as they are, unless these are large: answers of a store are small.

On our own wire all three go past coroutines, as a store's appends do: a call is answered by the end of its group.
Run as `python -m tests.bench.baselines.bare_echo WIRE DIRECTORY`; prints its port.
"""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

import grpc
import uvloop

from eddyline.store.__main__ import SWITCH_INTERVAL_S
from eddyline.store.runtime.workers import ThreadWorker
from eddyline.wire.calls.server import Server
from tests.bench.baselines.bare_wire import make_server, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from eddyline.wire.calls.call import Call
    from eddyline.wire.calls.context import WireContext

APPEND = "/bench.Echo/Append"
APPEND_GROUP = "/bench.Echo/AppendGroup"
APPEND_STREAM = "/bench.Echo/AppendStream"
AHEAD_MAX = 16
ANSWER_BYTES_MAX = 100
FILE_BYTES = 64 << 20


class Echo:
    """The handler. The file is filled beforehand, as the store's is: a file that grows is synced with its metadata."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY)
        os.pwrite(self._fd, bytes(FILE_BYTES), 0)
        os.fsync(self._fd)
        self._offset = 0
        self._worker = ThreadWorker("echo")
        self._staged: list[tuple[bytes, asyncio.Future[None]]] = []
        self._busy = False

    async def append(self, request: bytes, context: object) -> bytes:
        await self._worker.submit(partial(self._write, request))
        return request

    async def append_group(self, request: bytes, context: object) -> bytes:
        await self._stage(request)
        return request[:ANSWER_BYTES_MAX]

    def quick_append(self, call: Call, request: bytes) -> None:
        """`append` on our own wire."""
        self._answer_after(call, self._worker.submit(partial(self._write, request)), request)

    def quick_append_group(self, call: Call, request: bytes) -> None:
        """`append_group` on our own wire."""
        self._answer_after(call, self._stage(request), request[:ANSWER_BYTES_MAX])

    @staticmethod
    def _answer_after(call: Call, done: asyncio.Future[None], answer: bytes) -> None:
        call.defer()
        done.add_done_callback(lambda _: call.answer(answer))

    async def stream(self, requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        ahead: asyncio.Queue[tuple[bytes, asyncio.Future[None]] | None] = asyncio.Queue(AHEAD_MAX)

        async def read() -> None:
            async for request in requests:
                await ahead.put((request, self._stage(request)))
            await ahead.put(None)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read())
            while (item := await ahead.get()) is not None:
                await item[1]
                yield item[0][:ANSWER_BYTES_MAX]

    async def quick_stream(self, _requests: object, context: WireContext) -> None:
        """The same on our own wire; groups are answered in order, so each answer is sent as its group ends."""
        call, ended = context.call, asyncio.Event()
        ahead, is_paused, is_last = 0, False, False

        def take(message: bytes) -> bool:
            nonlocal ahead, is_paused
            ahead += 1
            self._stage(message).add_done_callback(lambda _: answer(message))
            is_paused = ahead >= AHEAD_MAX
            return not is_paused

        def answer(message: bytes) -> None:
            nonlocal ahead, is_paused
            ahead -= 1
            call.send(message[:ANSWER_BYTES_MAX])
            if is_paused:
                is_paused = False
                call.resume()
            if is_last and not ahead:
                ended.set()

        def end() -> None:
            nonlocal is_last
            is_last = True
            if not ahead:
                ended.set()

        call.receive(take, end)
        await ended.wait()

    def _stage(self, data: bytes) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._staged.append((data, done))
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().call_soon(self._begin)
        return done

    def _begin(self) -> None:
        group, self._staged = self._staged, []
        self._busy = bool(group)
        if group:
            written = self._worker.submit(partial(self._write, *(data for data, _ in group)))
            written.add_done_callback(lambda _: self._end([done for _, done in group]))

    def _end(self, group: Sequence[asyncio.Future[None]]) -> None:
        for done in group:
            if not done.done():
                done.set_result(None)
        self._begin()

    def _write(self, *data: bytes) -> None:
        size = sum(map(len, data))
        if self._offset + size > FILE_BYTES:
            self._offset = 0
        self._offset += os.pwrite(self._fd, data[0] if len(data) == 1 else b"".join(data), self._offset)
        os.fdatasync(self._fd)


async def main(wire: str, directory: str) -> None:
    server = make_server(wire)
    echo = Echo(os.path.join(directory, f"echo-{wire}"))
    stream = echo.quick_stream if wire == "own" else echo.stream
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Append": grpc.unary_unary_rpc_method_handler(echo.append),
        "AppendGroup": grpc.unary_unary_rpc_method_handler(echo.append_group),
        "AppendStream": grpc.stream_stream_rpc_method_handler(stream),
    }
    if isinstance(server, Server):
        server.add_quick_handlers("bench.Echo", {"Append": echo.quick_append, "AppendGroup": echo.quick_append_group})
    await serve(server, {"bench.Echo": handlers})
    await server.wait_for_termination()


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    uvloop.run(main(*sys.argv[1:]))
