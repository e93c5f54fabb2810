"""HTTP probes of an orchestrator, and the key of a scraper."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.core.runtime.clock import SystemHost
from eddyline.core.runtime.settings import CommonSettings, SettingsError
from eddyline.core.server.health import NATS_LEG, STORE_LEG, HealthBoard
from eddyline.core.telemetry.metrics import counter
from eddyline.core.telemetry.metrics_export import MetricsExport
from eddyline.core.telemetry.probes import Probes, ReplayProgress
from tests.support.manual_clock import ManualClock
from tests.support.telemetry.scrape import http_get

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.core.telemetry.metrics import Metric

KEY = "0123456789abcdef"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "metrics.key"
    file.write_text(f"{KEY}\n", encoding="utf-8")
    return file


async def collected() -> list[Metric]:
    return [counter("asked_total", "Asked.", 1)]


@asynccontextmanager
async def endpoint(
    probes: Probes | None = None, *, key_file: str = "", listen: str = "127.0.0.1:0"
) -> AsyncIterator[str]:
    common = CommonSettings(metrics_key_file=key_file)
    export = MetricsExport(
        "store", listen, version="9", common=common, clock=ManualClock(), host=SystemHost(), probes=probes
    )
    async with export.running(collected):
        yield export.address()


async def asked(address: str, path: str, *headers: str) -> tuple[int, str]:
    head = "\r\n".join((f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""))
    status, body = await http_get(address, head.encode())
    return status, body.decode().strip()


async def test_process_is_live_whatever_its_role_is_missing() -> None:
    board = HealthBoard()
    async with endpoint(Probes(board)) as address:
        await board.set_leg(NATS_LEG, False)
        await board.set_ready(False)
        assert await asked(address, "/live") == (200, "live")
        await board.stop()
        assert await asked(address, "/live") == (200, "live")


async def test_role_that_is_not_ready_names_the_missing_leg() -> None:
    board = HealthBoard()
    async with endpoint(Probes(board)) as address:
        assert await asked(address, "/ready") == (503, "not ready")
        await board.set_leg(NATS_LEG, False)
        await board.set_leg(STORE_LEG, True)
        assert await asked(address, "/ready") == (503, "not ready: nats not reached")
        await board.set_leg(NATS_LEG, True)
        await board.set_ready(True)
        assert await asked(address, "/ready") == (200, "ready")


async def test_probes_answer_head() -> None:
    board = HealthBoard()
    async with endpoint(Probes(board)) as address:
        for path, status in {"/live": 200, "/started": 200, "/ready": 503}.items():
            assert await http_get(address, f"HEAD {path} HTTP/1.1\r\n\r\n".encode()) == (status, b"")
        await board.set_ready(True)
        assert await http_get(address, b"HEAD /ready HTTP/1.1\r\n\r\n") == (200, b"")


async def test_head_of_metrics_needs_the_key(key_file: Path) -> None:
    async with endpoint(key_file=str(key_file)) as address:
        assert await http_get(address, b"HEAD /metrics HTTP/1.1\r\n\r\n") == (401, b"")
        request = f"HEAD /metrics HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\n\r\n"
        assert await http_get(address, request.encode()) == (200, b"")


async def test_role_that_stops_is_not_ready() -> None:
    board = HealthBoard()
    async with endpoint(Probes(board)) as address:
        await board.set_ready(True)
        await board.stop()
        assert await asked(address, "/ready") == (503, "not ready")


async def test_recovery_counts_as_started_and_reports_progress() -> None:
    board, far = HealthBoard(), [ReplayProgress()]
    async with endpoint(Probes(board, recovered=lambda: far[0])) as address:
        assert await asked(address, "/started") == (503, "starting")
        far[0] = ReplayProgress(30, 120)
        assert await asked(address, "/started") == (200, "started")
        assert await asked(address, "/ready") == (503, "recovering: 30 of 120 bytes of log, 25 %")
        far[0] = ReplayProgress(120, 120)
        assert await asked(address, "/ready") == (503, "not ready")


async def test_store_with_nothing_to_recover_has_started_once_it_is_ready() -> None:
    board = HealthBoard()
    async with endpoint(Probes(board, recovered=ReplayProgress)) as address:
        assert await asked(address, "/started") == (503, "starting")
        await board.set_ready(True)
        assert await asked(address, "/started") == (200, "started")


async def test_role_that_recovers_nothing_has_started_at_once() -> None:
    async with endpoint(Probes(HealthBoard())) as address:
        assert await asked(address, "/started") == (200, "started")


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Authorization: Bearer {KEY}", 200),
        (f"authorization:bearer  {KEY}", 200),
        (f"Authorization: Bearer {KEY}x", 401),
        (f"Authorization: Basic {KEY}", 401),
        (f"X-Authorization: Bearer {KEY}", 401),
        ("Authorization:", 401),
        ("X: y", 401),
    ],
)
async def test_metrics_with_a_key_need_it(key_file: Path, header: str, status: int) -> None:
    async with endpoint(Probes(HealthBoard()), key_file=str(key_file)) as address:
        seen, body = await asked(address, "/metrics", header)
        assert seen == status
        assert ("asked_total" in body) == (status == 200)
        assert (await asked(address, "/live"))[0] == 200


async def test_metrics_listen_beyond_loopback_only_with_a_key(key_file: Path) -> None:
    with pytest.raises(SettingsError, match="only loopback"):
        async with endpoint(listen="0.0.0.0:0"):
            pass
    async with endpoint(listen="0.0.0.0:0", key_file=str(key_file)) as address:
        port = address.rpartition(":")[2]
        assert (await asked(f"127.0.0.1:{port}", "/metrics"))[0] == 401


@pytest.mark.parametrize("content", ["", "short\n", f"{KEY} {KEY}", f"{KEY}ü", "x" * 1_025])
async def test_key_that_is_too_short_or_not_printable_refuses_the_start(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError, match="has no key") as refused:
        async with endpoint(key_file=str(file)):
            pass
    assert KEY not in str(refused.value)


async def test_key_file_that_is_not_there_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"METRICS_KEY_FILE .*FileNotFoundError"):
        async with endpoint(key_file=str(tmp_path / "none")):
            pass
