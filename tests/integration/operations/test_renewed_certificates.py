"""A whole cluster of real processes whose certificates and authority are replaced while it runs, and nobody restarts it."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import nats
import pytest
from grpc_health.v1 import health_pb2
from nats.js.api import KeyValueConfig

from eddyline.cli.local_cluster.cluster import LocalCluster
from eddyline.client.connect import connect
from eddyline.client.transport.access import client_access
from eddyline.client.watch.events import Records
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Op, Record
from tests.support.certificates import Authority, Certificate, Files, replace, serial, shown
from tests.support.cluster.local_clusters import cluster_in
from tests.support.telemetry.scrape import Scrape, http_get

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from eddyline.client.watch.watch import Watch
    from eddyline.core.auth.caller_channel import CallerAccess

pytestmark = pytest.mark.integration

BUCKET = "orders"
ROLES = ("store", "ingest", "delivery")
PATIENCE_S = 200
UNTIL = datetime(2041, 2, 3, 4, 5, 6, tzinfo=UTC)
METRICS_KEY = "0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody with a certificate, who trusts a bundle."""

    own: Certificate
    bundle: Path

    @property
    def access(self) -> CallerAccess:
        """Its credentials."""
        return client_access(tls_ca=str(self.bundle), tls_cert=str(self.own.certificate), tls_key=str(self.own.key))

    async def gets_in(self, address: str) -> bool:
        """Whether a new connection comes about."""
        async with self.access.open_channel(address, own_connection=True) as channel:
            check: grpc.aio.UnaryUnaryMultiCallable[bytes, health_pb2.HealthCheckResponse] = channel.unary_unary(
                "/grpc.health.v1.Health/Check", response_deserializer=health_pb2.HealthCheckResponse.FromString
            )
            try:
                await check(b"", timeout=5)
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                return False
        return True

    async def is_refused(self, address: str) -> bool:
        """Whether none does."""
        return not await self.gets_in(address)


class Scene:
    """A running cluster, its files, and two authorities."""

    def __init__(self, folder: Path) -> None:
        self.old, self.new = Authority(folder / "old"), Authority(folder / "new")
        self.files = Files(folder / "mounted", self.old)
        bundle = folder / "bundle.pem"
        replace(bundle, b"".join(one.own.certificate.read_bytes() for one in (self.old, self.new)))
        self.before = Holder(self.old.sign("before"), bundle)
        self.after = Holder(self.new.sign("after"), bundle)
        self.client = Files(folder / "client", self.old, "client")
        self.client.trust(self.old, self.new)
        self.key_file = folder / "metrics.key"
        self.key_file.write_text(METRICS_KEY, encoding="utf-8")

    cluster: LocalCluster

    def pids(self) -> dict[str, int]:
        """Of the roles."""
        return {role: self.cluster.supervisor.parts[role].pid for role in ROLES}

    def log(self, role: str) -> str:
        """A role's log."""
        return (self.cluster.data / "logs" / f"{role}.log").read_text(encoding="utf-8")

    async def says(self, role: str, text: str) -> bool:
        """Whether a role has said so."""
        return text in self.log(role)

    async def has_another_store(self, pid: int) -> bool:
        """Whether the supervisor has started one in the place of this."""
        return self.pids()["store"] not in (0, pid)

    async def create_source(self) -> None:
        """Have the bucket copied."""
        flags = ["--cluster", self.cluster.address, "--tls-ca", str(self.before.bundle)]
        flags += ["--tls-cert", str(self.before.own.certificate), "--tls-key", str(self.before.own.key)]
        words = ("source", "create", BUCKET, "--bucket", BUCKET, *flags)
        started = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "eddyline.cli", *words), env={**os.environ, "GRPC_VERBOSITY": "ERROR"}
        )
        assert await started.wait() == 0

    async def metrics(self, role: str, *headers: str) -> tuple[int, bytes]:
        """A scrape by somebody without a certificate, who verifies."""
        tls = ssl.create_default_context(cafile=str(self.before.bundle))
        head = "\r\n".join(("GET /metrics HTTP/1.1", "Host: x", *headers, "", "")).encode()
        return await http_get(self.cluster.metrics_address(role), head, tls=tls)

    async def health_check(self, role: str) -> tuple[int | None, str]:
        """The result of an image's health check."""
        environ = {
            **os.environ,
            f"EDDYLINE_{role.upper()}_METRICS_LISTEN": self.cluster.metrics_address(role),
            **self.files.environment(),
        }
        asking = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "eddyline.core.ask_probe", "ready"), stdout=asyncio.subprocess.PIPE, env=environ
        )
        said, _ = await asking.communicate()
        return asking.returncode, said.decode().strip()


@asynccontextmanager
async def running(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    scene = Scene(folder)
    environment = scene.files.environment() | {"EDDYLINE_COMMON_METRICS_KEY_FILE": str(scene.key_file)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    async with cluster_in(folder) as cluster:
        scene.cluster = cluster
        yield scene


async def comes_to_hold(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it does."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - of other processes: there is no event
            await asyncio.sleep(0.1)


async def shows(address: str, number: int) -> bool:
    """Whether a port shows the certificate of this serial number."""
    return await asyncio.to_thread(shown, address) == number


async def put(scene: Scene, key: str) -> None:
    """Write a key of the bucket that is copied."""
    writer = await nats.connect(scene.cluster.nats_url)
    try:
        await (await writer.jetstream().key_value(BUCKET)).put(key, b"v")
    finally:
        await writer.close()


async def seen(watch: Watch, key: bytes) -> None:
    """Read on until a key comes."""
    async with asyncio.timeout(PATIENCE_S):
        async for event in watch:
            if isinstance(event, Records) and key in [record.key for record in event.records]:
                return


async def test_cluster_goes_over_to_another_authority_while_streams_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as scene:
        addresses = {role: scene.cluster.addresses[role] for role in ROLES}
        ports = [*addresses.values(), *(scene.cluster.metrics_address(role) for role in ROLES)]
        first, pids = serial(scene.files.certificate), scene.pids()
        writer = await nats.connect(scene.cluster.nats_url)
        await writer.jetstream().create_key_value(KeyValueConfig(bucket=BUCKET, history=1))
        await writer.close()
        for port in ports:
            assert await shows(port, first)
        own = Holder(Certificate(scene.client.certificate, scene.client.key), scene.client.ca).access
        async with (
            connect(scene.cluster.address, access=scene.before.access) as client,
            connect(scene.cluster.address, access=own) as renewing,
        ):
            await scene.create_source()
            await client.create_topic("prices", Kind.KV)
            watch = client.watch([BUCKET, "prices"])
            await client.append("prices", [Record(op=Op.PUT, key=b"before", data=b"1")])
            await seen(watch, b"before")

            scene.files.trust(scene.old, scene.new)
            for address in addresses.values():
                await comes_to_hold(partial(scene.after.gets_in, address))
                assert await scene.before.gets_in(address)
            renewed = scene.new.sign("roles", not_after=UNTIL)
            replace(scene.files.certificate, renewed.certificate.read_bytes())
            await put(scene, "while-half-written")
            await seen(watch, b"while-half-written")
            for port in ports:
                assert await shows(port, first)
            replace(scene.files.key, renewed.key.read_bytes())
            await renewing.append("prices", [Record(op=Op.PUT, key=b"own-old", data=b"1")])
            scene.client.renew(scene.new.sign("client"))
            for port in ports:
                await comes_to_hold(partial(shows, port, serial(renewed.certificate)))

            scene.files.trust(scene.new)
            for address in addresses.values():
                await comes_to_hold(partial(scene.before.is_refused, address))
                assert await scene.after.gets_in(address)
            await client.append("prices", [Record(op=Op.PUT, key=b"over-old-connections", data=b"2")])
            await seen(watch, b"over-old-connections")

            os.kill(pids["store"], signal.SIGKILL)
            await comes_to_hold(partial(scene.has_another_store, pids["store"]))
            await scene.cluster.supervisor.wait_ready()
            assert not await scene.before.gets_in(addresses["store"])
            await put(scene, "over-new-connections")
            await seen(watch, b"over-new-connections")
            # With an idempotency key the client repeats it until its connection is back.
            own_renewed = Record(op=Op.PUT, key=b"own-renewed", data=b"1")
            await renewing.append("prices", [own_renewed], idempotency_key="own-renewed")
            await seen(watch, b"own-renewed")
        async with connect(scene.cluster.address, access=scene.after.access) as client:
            await client.append("prices", [Record(op=Op.PUT, key=b"after", data=b"3")])
        assert {role: pid for role, pid in scene.pids().items() if role != "store"} == {
            role: pid for role, pid in pids.items() if role != "store"
        }
        for role in ("ingest", "delivery"):
            assert f"not_after={UNTIL:%Y-%m-%dT%H:%M:%SZ}" in scene.log(role)
            assert "PRIVATE KEY" not in scene.log(role)


async def test_metrics_and_health_checks_over_tls_follow_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as scene:
        for role in ROLES:
            assert (await scene.metrics(role))[0] == 401
            assert await scene.health_check(role) == (0, "ready")
        await check_expiry(scene, serial(scene.files.certificate))
        good = scene.files.ca.read_bytes()
        scene.files.ca.unlink()
        for role in ROLES:
            await comes_to_hold(partial(scene.says, role, "certificates kept"))
            assert str(scene.files.ca) in scene.log(role)
            assert await scene.health_check(role) == (0, "ready")
        replace(scene.files.ca, good)
        renewed = scene.old.sign("roles", not_after=UNTIL)
        scene.files.renew(renewed)
        for role in ROLES:
            address = scene.cluster.metrics_address(role)
            await comes_to_hold(partial(shows, address, serial(renewed.certificate)))
            assert await scene.health_check(role) == (0, "ready")
            assert scene.log(role).count("certificates kept") == 1
        await check_expiry(scene, serial(renewed.certificate), UNTIL)


async def check_expiry(scene: Scene, number: int, until: datetime | None = None) -> None:
    """Each role says until when what it shows is good."""
    for role in ROLES:
        status, body = await scene.metrics(role, f"Authorization: Bearer {METRICS_KEY}")
        assert status == 200
        told = Scrape(body).value(f"eddyline_{role}_certificate_expiration_timestamp_seconds")
        assert await shows(scene.cluster.metrics_address(role), number)
        assert told == until.timestamp() if until is not None else told > 0
