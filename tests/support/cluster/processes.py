"""The roles, nats-server and the bare baselines as real processes, each alone on its port, stopped at the end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2

from eddyline.core.auth.caller_channel import CallerAccess
from eddyline.core.tls.files import ClientTls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

START_SECONDS_MAX = 90


def free_address() -> str:
    """A loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def tls_of(settings: dict[str, str]) -> ClientTls | None:
    """The credentials for a role with these settings."""
    ca = settings.get("EDDYLINE_COMMON_TLS_CA", "")
    return ClientTls(Path(ca).read_bytes()) if ca else None


@asynccontextmanager
async def process(
    module: str, *arguments: str, python: str = sys.executable, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A module of ours as a process; stopped at the end. `python` = of another checkout."""
    async with logging_process(module, *arguments, stderr=None, environment=environment, python=python) as started:
        yield started


@asynccontextmanager
async def logging_process(
    module: str, *arguments: str, stderr: int | None, environment: dict[str, str], python: str = sys.executable
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The same, whose log goes to a file's descriptor; None = where ours goes."""
    started = await asyncio.create_subprocess_exec(
        *(python, "-m", module, *arguments),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.terminate()
        await started.wait()


@asynccontextmanager
async def store_server(data_dir: Path) -> AsyncIterator[str]:
    """A store; its address once it serves."""
    async with store_process(data_dir) as (_, address):
        yield address


@asynccontextmanager
async def store_process(
    data_dir: Path, *, python: str = sys.executable, **more: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A store's process, for who wants to stop it, and its address once it serves. `python` = of another checkout."""
    address = free_address()
    settings = {
        "EDDYLINE_COMMON_STORE_ADDRESSES": address,
        "EDDYLINE_STORE_LISTEN": address,
        "EDDYLINE_STORE_DATA_DIR": str(data_dir),
        **more,
    }
    async with process("eddyline.store", python=python, **settings) as started:
        await serving(address, tls=tls_of(settings))
        yield started, address


class KillableStore:
    """A store's process that is killed and started again, at the same address and with the same files. Its calls block."""

    def __init__(self, data_dir: Path, **more: str) -> None:
        self.address = free_address()
        settings = {**more, "EDDYLINE_STORE_LISTEN": self.address, "EDDYLINE_STORE_DATA_DIR": str(data_dir)}
        self._environment = {**os.environ, **settings}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self._process = subprocess.Popen([sys.executable, "-m", "eddyline.store"], env=self._environment)
        with grpc.insecure_channel(self.address) as channel:
            check: grpc.UnaryUnaryMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            for _ in range(START_SECONDS_MAX * 20):
                answer = check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=START_SECONDS_MAX)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
                threading.Event().wait(0.05)
        raise AssertionError("the store never served")

    def kill(self) -> None:
        """Kill it as `kill -9` does, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop it where it is, as a machine that hangs."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> KillableStore:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@asynccontextmanager
async def bare_server(module: str, *arguments: str) -> AsyncIterator[str]:
    """Run a baseline of `tests.bench.baselines`, which prints its port; its address."""
    async with process(module, *arguments) as started:
        assert started.stdout is not None
        yield f"127.0.0.1:{int(await started.stdout.readline())}"


async def serving(address: str, service: str = "", *, is_serving: bool = True, tls: ClientTls | None = None) -> None:
    """Wait until the role at `address` says that it, or a part of it, is ready, or no more."""
    wanted = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
    async with asyncio.timeout(START_SECONDS_MAX), CallerAccess(tls=tls).open_channel(address) as channel:
        check: grpc.aio.UnaryUnaryMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        while True:
            try:
                answer = await check(health_pb2.HealthCheckRequest(service=service), wait_for_ready=True)
                if answer.status == wanted:
                    return
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND):
                    raise
            await asyncio.sleep(0.05)


@asynccontextmanager
async def nats_server(directory: Path) -> AsyncIterator[str]:
    """A JetStream server on a free port; its URL."""
    address = free_address()
    binary = os.path.join(os.path.dirname(sys.executable), "nats-server")
    host, port = address.split(":")
    started = await asyncio.create_subprocess_exec(
        binary, "-a", host, "-p", port, "-js", "-sd", str(directory / "nats"), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            while True:
                try:
                    _, writer = await asyncio.open_connection(host, int(port))
                    writer.close()
                    break
                except OSError:
                    await asyncio.sleep(0.02)
        yield f"nats://{address}"
    finally:
        started.terminate()
        await started.wait()


@asynccontextmanager
async def ingest_server(store: str, nats_url: str, directory: Path, bucket: str) -> AsyncIterator[str]:
    """An ingest that copies `bucket` to the topic of its name; its address."""
    async with ingest_process(store, nats_url, directory, bucket) as (_, address):
        yield address


@asynccontextmanager
async def ingest_process(
    store: str, nats_url: str, directory: Path, bucket: str, *, python: str = sys.executable, **more: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The same, with its process."""
    sources = directory / "sources.toml"
    sources.write_text(f'[[source]]\nname = "{bucket}"\nbucket = "{bucket}"\ntopic = "{bucket}"\n')
    address = free_address()
    settings = {
        "EDDYLINE_COMMON_STORE_ADDRESSES": store,
        "EDDYLINE_INGEST_LISTEN": address,
        "EDDYLINE_INGEST_NATS_URL": nats_url,
        "EDDYLINE_INGEST_SOURCES_FILE": str(sources),
        **more,
    }
    async with process("eddyline.ingest", python=python, **settings) as started:
        await serving(address, tls=tls_of(settings))
        yield started, address


@asynccontextmanager
async def delivery_server(store: str) -> AsyncIterator[str]:
    """A delivery of `store`; its address."""
    address = free_address()
    async with delivery_at(address, store):
        yield address


@asynccontextmanager
async def delivery_at(
    address: str, store: str, *, python: str = sys.executable, **more: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A delivery of `store` at a given address; its process, for who wants to kill it."""
    settings = {"EDDYLINE_COMMON_STORE_ADDRESSES": store, "EDDYLINE_DELIVERY_LISTEN": address, **more}
    async with process("eddyline.delivery", python=python, **settings) as started:
        await serving(address, tls=tls_of(settings))
        yield started


@asynccontextmanager
async def bare_chain(wire: str, nats_url: str, subject: str) -> AsyncIterator[str]:
    """P4's baseline with servers of that wire; the address of its last hop."""
    async with (
        bare_server("tests.bench.baselines.bare_chain", wire, "store") as store,
        bare_server("tests.bench.baselines.bare_chain", wire, "delivery", store) as delivery,
        process("tests.bench.baselines.bare_chain", wire, "ingest", store, nats_url, subject),
    ):
        yield delivery
