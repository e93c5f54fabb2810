"""The servers that the peer rows compare, each a process on loopback with a directory of its own and its output in a file.

A server of ours has its side in its name: `store-own` is a role on our own wire, `store-before` one of another checkout
(`tests.bench.sides`), `bare-own` the bare fan-out. The name of a peer ends with its durability, where it has more than one.
*Invariant:* a server that is absent is named with the way to get it, and no row counts it as measured. All servers of a
row run at the same time, and one is measured at a time: `rest` waits until all of them are idle.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.bench.sides import BEFORE, our_sides
from tests.support.cluster.process_figures import processor_s
from tests.support.cluster.processes import START_SECONDS_MAX, free_address, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

ROOT: Final = Path(__file__).parents[3]
BUILD: Final = ROOT / "build/peers"
ROLES: Final = ("store", "delivery")
STOP_S_MAX: Final = 20
LOG_CHARACTERS: Final = 500
REST_LOOK_S: Final = 0.25
REST_SHARE_MAX: Final = 0.1
"""Of one core, all servers together: an idle etcd and an idle store each use about 0.01."""
REST_S_MAX: Final = 8
TOPICS_VARIABLE: Final = "TOPICS_BIN"

NATS_CONFIG: Final = """listen: "{address}"
max_payload: 8MB
write_deadline: "60s"
max_pending: 1GB
jetstream {{ store_dir: "{directory}", max_file_store: 60GB, max_memory_store: 2GB{sync} }}
"""
"""The deadline and the pending bytes are those of a fan-out to 1 000 subscribers, whose reader is one process."""


class Absent(Exception):
    """A server's program is not on this machine; the text says how to get it."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that listens: its `host:port` and its process."""

    address: str
    pid: int


def program(server: str) -> Path:
    """The program of a server, or of the load client (`peerload`).

    Raises:
        Absent: it is not on this machine.
    """
    name, _, way = server.partition("-")
    found: str | Path | None
    match name:
        case "peerload" | "etcd":
            found, how = BUILD / name, "make peers (needs Go)"
        case "redis":
            found, how = shutil.which("redis-server"), "install the Debian package redis-server"
        case "topics":
            found, how = os.environ.get(TOPICS_VARIABLE), f"set {TOPICS_VARIABLE} to a binary of slopus/topics"
        case "jetstream":
            found, how = Path(sys.executable).parent / "nats-server", "make peers"
        case _:
            found, how = BEFORE if way == "before" else sys.executable, "set EDDYLINE_BENCH_BEFORE"
    if found is None or not Path(found).is_file():
        raise Absent(f"{name} is absent: {how}")
    return Path(found)


@asynccontextmanager
async def open_servers(names: Iterable[str], directory: Path) -> AsyncIterator[dict[str, RunningServer]]:
    """Start those of the servers that are on this machine; stop them at the end. A store is named before its delivery."""
    running: dict[str, RunningServer] = {}
    async with AsyncExitStack() as stack:
        for name in names:
            try:
                binary = program(name)
            except Absent:
                continue
            folder = directory / name
            folder.mkdir()
            opened = _server(name, binary, folder, running)
            running[name] = await stack.enter_async_context(opened)
        yield running


async def rest(servers: Iterable[RunningServer]) -> None:
    """Wait until the servers are idle, at most `REST_S_MAX`, so that none disturbs the next measurement."""
    pids = [server.pid for server in servers]
    used = sum(map(processor_s, pids))
    for _ in range(int(REST_S_MAX / REST_LOOK_S)):
        await asyncio.sleep(REST_LOOK_S)
        now = sum(map(processor_s, pids))
        if now - used <= REST_SHARE_MAX * REST_LOOK_S:
            return
        used = now


@asynccontextmanager
async def _server(
    name: str, binary: Path, folder: Path, running: dict[str, RunningServer]
) -> AsyncIterator[RunningServer]:
    """One server by its name, once it serves: a role of ours, or a peer with the durability that its name says."""
    address = free_address()
    settings = {**os.environ, **_settings(name, address, folder, running)}
    log = folder.with_suffix(".log")
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *_command(name, binary, address, folder), env=settings, stdout=output, stderr=output
        )
    try:
        await _listens(address, process, log)
        if name.partition("-")[0] in ROLES:
            await serving(address)
        yield RunningServer(address, process.pid)
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _settings(name: str, address: str, folder: Path, running: dict[str, RunningServer]) -> dict[str, str]:
    """The environment of a server that has its settings there."""
    kind, _, way = name.partition("-")
    match kind:
        case "store":
            own = {"EDDYLINE_COMMON_STORE_ADDRESSES": address, "EDDYLINE_STORE_DATA_DIR": str(folder)}
            return {**_side_settings(way), **own, "EDDYLINE_STORE_LISTEN": address}
        case "delivery":
            own = {"EDDYLINE_COMMON_STORE_ADDRESSES": running[f"store-{way}"].address}
            return {**_side_settings(way), **own, "EDDYLINE_DELIVERY_LISTEN": address}
        case "topics":
            port = address.rpartition(":")[2]
            unbounded = {"TOPICS_MAX_SSE_CONNECTIONS_PER_KEY": "0", "TOPICS_MAX_INFLIGHT_PER_KEY": "0"}
            return {"TOPICS_PORT": port, "TOPICS_DATA_DIR": str(folder), "RUST_LOG": "error", **unbounded}
    return {}


def _side_settings(name: str) -> dict[str, str]:
    return next(side.settings for side in our_sides() if side.name == name)


def _command(name: str, binary: Path, address: str, folder: Path) -> list[str]:
    """The command line of a server."""
    port = address.rpartition(":")[2]
    kind, _, way = name.partition("-")
    match kind:
        case "store" | "delivery":
            return [str(binary), "-m", f"eddyline.{kind}"]
        case "bare":
            return [str(binary), "-m", "tests.bench.baselines.bare_fan_out", way, address]
        case "jetstream":
            config = folder.with_suffix(".conf")
            sync = ', sync_interval: "always"' if way == "always" else ""
            config.write_text(NATS_CONFIG.format(address=address, directory=folder, sync=sync), encoding="utf-8")
            return [str(binary), "-c", str(config)]
        case "redis":
            command = [str(binary), "--port", port, "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes"]
            return [*command, "--appendfsync", way, "--save", "", "--auto-aof-rewrite-percentage", "0"]
        case "etcd":
            client, peer = f"http://{address}", f"http://{free_address()}"
            command = [str(binary), "--data-dir", str(folder / "data"), "--log-level", "error", "--max-txn-ops", "1024"]
            command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
            return [*command, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        case "topics":
            return [str(binary)]
    raise ValueError(name)


async def _listens(address: str, process: asyncio.subprocess.Process, log: Path) -> None:
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(START_SECONDS_MAX):
        while process.returncode is None:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
    raise RuntimeError(f"{log.stem} ended at once: {_end_of(log)}")


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:]
