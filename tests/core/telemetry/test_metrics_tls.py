"""The endpoint of metrics and probes with a certificate: TLS only, renewed, bounded, open to clients without one."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from eddyline.core import ask_probe
from eddyline.core.auth.role import RoleAccess
from eddyline.core.runtime.clock import SystemHost
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.server.health import HealthBoard
from eddyline.core.telemetry import http_server as metrics_http
from eddyline.core.telemetry.metrics import counter
from eddyline.core.telemetry.metrics_export import MetricsExport
from eddyline.core.telemetry.probes import Probes
from tests.core.telemetry.test_metrics_export import silent
from tests.core.telemetry.test_probes import KEY, key_file
from tests.support.certificates import Authority, Files, replace, serial, shown
from tests.support.hang import HANG_S
from tests.support.manual_clock import ManualClock
from tests.support.telemetry.scrape import Scrape, http_get

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.core.telemetry.metrics import Metric

__all__ = ["key_file"]
LARGE = 20_000


async def collected() -> list[Metric]:
    return [counter(f"asked_{number}_total", "Asked.", number) for number in range(LARGE)]


@asynccontextmanager
async def endpoint(files: Files, *, key: str = "", board: HealthBoard | None = None) -> AsyncIterator[Endpoint]:
    common = CommonSettings(metrics_key_file=key, **files.settings())  # type: ignore[arg-type]  # as the fields are
    access = RoleAccess(common)
    export = MetricsExport(
        "store",
        "127.0.0.1:0",
        version="9",
        common=common,
        clock=ManualClock(),
        host=SystemHost(),
        probes=Probes(board or HealthBoard()),
        tls=access.http_context,
    )
    async with export.running(collected):
        yield Endpoint(access, export.address())


class Endpoint:
    """A running endpoint."""

    def __init__(self, access: RoleAccess, address: str) -> None:
        self.access = access
        self.address = address

    async def get(self, authority: Authority, path: str, *headers: str) -> tuple[int, str]:
        """Return the answer to a client that knows the authority and has no certificate."""
        head = "\r\n".join((f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""))
        tls = ssl.create_default_context(cafile=str(authority.own.certificate))
        status, body = await http_get(self.address, head.encode(), tls=tls)
        return status, body.decode().strip()


async def test_probes_need_no_key_and_metrics_do(files: Files, authority: Authority, key_file: Path) -> None:
    async with endpoint(files, key=str(key_file)) as at:
        assert await at.get(authority, "/live") == (200, "live")
        assert (await at.get(authority, "/ready"))[0] == 503
        assert (await at.get(authority, "/metrics"))[0] == 401
        status, body = await at.get(authority, "/metrics", f"Authorization: Bearer {KEY}")
        assert status == 200
        assert len(Scrape(body.encode() + b"\n").names) == LARGE


async def test_metrics_need_no_key_on_loopback(files: Files, authority: Authority) -> None:
    async with endpoint(files) as at:
        assert (await at.get(authority, "/metrics"))[0] == 200


async def test_next_connection_sees_the_renewed_certificate(files: Files, authority: Authority) -> None:
    async with endpoint(files) as at:
        assert await asyncio.to_thread(shown, at.address) == serial(files.certificate)
        renewed = authority.sign("role")
        replace(files.certificate, renewed.certificate.read_bytes())
        await at.access.poll()
        assert await at.get(authority, "/live") == (200, "live")
        assert await asyncio.to_thread(shown, at.address) != serial(renewed.certificate)
        replace(files.key, renewed.key.read_bytes())
        await at.access.poll()
        assert await asyncio.to_thread(shown, at.address) == serial(renewed.certificate)


async def test_client_without_tls_gets_no_answer(files: Files) -> None:
    async with endpoint(files) as at, asyncio.timeout(HANG_S):
        said = await silent(at.address, b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"live" not in said


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
async def test_handshake_that_does_not_end_is_cut(files: Files, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(metrics_http, "READ_S", 0.05)
    async with endpoint(files) as at, asyncio.timeout(HANG_S):
        assert await silent(at.address, said) == b""


async def test_connections_within_their_handshake_do_not_block_probes(files: Files, authority: Authority) -> None:
    async with endpoint(files) as at, asyncio.timeout(HANG_S):
        host, _, port = at.address.rpartition(":")
        open_ones = [await asyncio.open_connection(host, int(port)) for _ in range(metrics_http.CONNECTIONS_MAX)]
        assert await at.get(authority, "/live") == (200, "live")
        for _, writer in open_ones:
            writer.close()


async def test_handshake_is_refused_while_too_many_connections_are_open(files: Files, authority: Authority) -> None:
    tls = ssl.create_default_context(cafile=str(authority.own.certificate))
    async with endpoint(files) as at, asyncio.timeout(HANG_S):
        host, _, port = at.address.rpartition(":")
        open_ones = [
            await asyncio.open_connection(host, int(port), ssl=tls) for _ in range(metrics_http.CONNECTIONS_MAX)
        ]
        with pytest.raises(OSError):
            await asyncio.open_connection(host, int(port), ssl=tls)
        for _, writer in open_ones:
            writer.close()
        while True:
            try:
                assert await at.get(authority, "/live") == (200, "live")
                break
            except OSError:
                await asyncio.sleep(0)  # the server has not seen the end of those connections yet


async def test_head_without_an_end_is_cut(files: Files, authority: Authority) -> None:
    async with endpoint(files) as at, asyncio.timeout(HANG_S):
        with pytest.raises((OSError, IndexError)):
            await at.get(authority, "/" + "x" * (64 << 10))


async def test_health_check_of_an_image_asks_by_tls(
    files: Files, capsys: pytest.CaptureFixture[str], authority: Authority
) -> None:
    board = HealthBoard()

    async def code_of(probe: str, address: str, *, encrypted: bool = True) -> int:
        environ = {"EDDYLINE_STORE_METRICS_LISTEN": address}
        if encrypted:
            environ["EDDYLINE_COMMON_TLS_CERT"] = str(files.certificate)
        return await asyncio.to_thread(partial(ask_probe.main, [probe], environ))

    async with endpoint(files, board=board) as at:
        assert await code_of("live", at.address) == 0
        assert await code_of("ready", at.address) == 1
        await board.set_ready(True)
        files.renew(Authority(files.ca.parent / "unknown").sign("role"))
        await at.access.poll()
        assert await code_of("ready", at.address) == 0
        assert capsys.readouterr().out == "live\nnot ready\nready\n"
        assert await code_of("live", at.address, encrypted=False) == 1
    assert await code_of("live", at.address) == 1
