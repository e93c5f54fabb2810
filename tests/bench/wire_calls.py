"""Processor time of a server a call, ours and grpc.aio's in turn: `python -m tests.bench.wire_calls [rounds]`. Prints only.

Each server is a process of its own, and the client is grpc.aio here. The time is that of the server's process, user and
system, by call or message; `x` is grpc.aio's over ours.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import uvloop

from eddyline.wire.calls.call import Call, send_to_all
from eddyline.wire.calls.server import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from eddyline.wire.calls.context import WireContext

KINDS = ("grpc", "own", "own quick")
ROUNDS = 3
CLIENTS = 16
CALLS = 3_000
MESSAGES = 20_000
WATCHERS = 20
FAN_MESSAGES = 500
BODY = b"x" * 100
TICKS_S = os.sysconf("SC_CLK_TCK")


class Methods:
    """Handlers of a server."""

    def __init__(self) -> None:
        self._watchers: list[WireContext] = []

    async def echo(self, request: bytes, _context: WireContext) -> bytes:
        """Answer with the request."""
        return request

    async def bidi(self, requests: AsyncIterator[bytes], _context: WireContext) -> AsyncIterator[bytes]:
        """Answer each message with itself."""
        async for request in requests:
            yield request

    async def watch(self, _request: bytes, context: WireContext) -> None:
        """Send what is published."""
        await context.send_initial_metadata(())
        self._watchers.append(context)
        await asyncio.Event().wait()

    async def publish(self, request: bytes, context: WireContext) -> bytes:
        """Send a message to all watchers, as often as the request says, a turn of the loop between."""
        calls: list[Call] = [one.call for one in self._watchers] if hasattr(context, "call") else []
        for _ in range(int(request)):
            for call in send_to_all(calls, BODY):
                call.send(BODY)
            if not calls:
                for watcher in self._watchers:
                    await watcher.write(BODY)
            await asyncio.sleep(0)
        self._watchers.clear()
        return b""


async def serve(kind: str) -> None:
    """Serve until the input ends, and print the port."""
    methods = Methods()
    server = grpc.aio.server() if kind == "grpc" else Server()
    if isinstance(server, Server) and kind == "own quick":
        server.add_quick_handlers("t.T", {"Echo": lambda _call, request: request})
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Echo": grpc.unary_unary_rpc_method_handler(methods.echo),
        "Bidi": grpc.stream_stream_rpc_method_handler(methods.bidi),
        "Watch": grpc.unary_stream_rpc_method_handler(methods.watch),
        "Publish": grpc.unary_unary_rpc_method_handler(methods.publish),
    }
    server.add_registered_method_handlers("t.T", handlers)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


class Process:
    """A server's process."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self._process = process
        self.address = address

    def used_s(self) -> float:
        """Processor time so far, user and system."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_S


@asynccontextmanager
async def served(kind: str) -> AsyncIterator[Process]:
    """Run a server in a process."""
    command = (sys.executable, "-m", "tests.bench.wire_calls", "serve", kind)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None and process.stdin is not None
    port = (await process.stdout.readline()).decode().strip()
    try:
        yield Process(process, f"127.0.0.1:{port}")
    finally:
        process.stdin.close()
        await process.wait()


async def unary(channel: grpc.aio.Channel) -> int:
    """Call from `CLIENTS` coroutines."""
    echo: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/t.T/Echo")

    async def client() -> None:
        for _ in range(CALLS // CLIENTS):
            await echo(BODY)

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())
    return CALLS // CLIENTS * CLIENTS


async def bidi(channel: grpc.aio.Channel) -> int:
    """Send messages in one stream."""
    call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/t.T/Bidi")(
        iter([BODY] * (MESSAGES // 4))  # type: ignore[arg-type]
    )
    return len([one async for one in call])


async def fan_out(channel: grpc.aio.Channel) -> int:
    """Publish to watchers of one connection."""
    watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/t.T/Watch")
    calls = [watch(b"") for _ in range(WATCHERS)]
    for call in calls:
        await call.initial_metadata()
    publish: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/t.T/Publish")

    async def read(call: grpc.aio.UnaryStreamCall[bytes, bytes]) -> None:
        for _ in range(FAN_MESSAGES):
            await call.read()
        call.cancel()

    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(read(call))
        await publish(b"%d" % FAN_MESSAGES)
    return WATCHERS * FAN_MESSAGES


LOADS: dict[str, Callable[[grpc.aio.Channel], Awaitable[int]]] = {"unary": unary, "bidi": bidi, "fan-out": fan_out}


async def main(rounds: int) -> None:
    """Measure in turns, and print medians."""
    figures: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for kind in KINDS:
            async with served(kind) as process, grpc.aio.insecure_channel(process.address) as channel:
                await unary(channel)
                for name, load in LOADS.items():
                    before = process.used_s()
                    count = await load(channel)
                    figures.setdefault((name, kind), []).append((process.used_s() - before) / count * 1e6)
    print(f"{'us of the server':20}" + "".join(f"{kind:>12}" for kind in KINDS) + f"{'x':>8}{'x quick':>9}")
    for name in LOADS:
        medians = [statistics.median(figures[name, kind]) for kind in KINDS]
        ratios = [medians[0] / max(one, 0.1) for one in medians[1:]]
        print(f"{name:20}" + "".join(f"{one:12.1f}" for one in medians) + f"{ratios[0]:8.1f}{ratios[1]:9.1f}")


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if sys.argv[1:2] == ["serve"]:
            runner.run(serve(sys.argv[2]))
        else:
            runner.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS))
