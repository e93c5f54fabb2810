"""P3's baseline: one handler that writes what it gets and fdatasyncs it on one thread, then answers. No group, no engine.

Run as `python -m tests.bench.baselines.bare_echo DIRECTORY`; prints its port.
"""

from __future__ import annotations

import os
import sys
from functools import partial

import grpc
import uvloop

from eddyline.store.__main__ import SWITCH_INTERVAL_S
from eddyline.store.runtime.workers import ThreadWorker

APPEND = "/bench.Echo/Append"
FILE_BYTES = 64 << 20


class Echo:
    """The handler. The file is filled beforehand, as the store's is: a file that grows is synced with its metadata."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY)
        os.pwrite(self._fd, bytes(FILE_BYTES), 0)
        os.fsync(self._fd)
        self._offset = 0
        self._worker = ThreadWorker("echo")

    async def append(self, request: bytes, context: object) -> bytes:
        await self._worker.submit(partial(self._write, request))
        return request

    def _write(self, data: bytes) -> None:
        if self._offset + len(data) > FILE_BYTES:
            self._offset = 0
        self._offset += os.pwrite(self._fd, data, self._offset)
        os.fdatasync(self._fd)


async def main(directory: str) -> None:
    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Append": grpc.unary_unary_rpc_method_handler(Echo(os.path.join(directory, "echo")).append)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    uvloop.run(main(sys.argv[1]))
