"""Probes of real processes: a role lives and has started whatever it is missing, and says what that is."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster.processes import delivery_at, free_address, process, serving, store_process
from tests.support.telemetry.scrape import http_get

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


async def asked(address: str, path: str) -> tuple[int, str]:
    status, body = await http_get(address, f"GET {path} HTTP/1.1\r\n\r\n".encode())
    return status, body.decode().strip()


async def test_store_that_serves_has_started_and_is_ready(tmp_path: Path) -> None:
    address = free_address()
    async with store_process(tmp_path, EDDYLINE_STORE_METRICS_LISTEN=address):
        assert await asked(address, "/live") == (200, "live")
        assert await asked(address, "/started") == (200, "started")
        assert await asked(address, "/ready") == (200, "ready")


async def test_ingest_without_nats_and_store_lives_and_names_both(tmp_path: Path) -> None:
    listen, metrics = free_address(), free_address()
    settings = {
        "EDDYLINE_INGEST_LISTEN": listen,
        "EDDYLINE_INGEST_METRICS_LISTEN": metrics,
        "EDDYLINE_INGEST_NATS_URL": f"nats://{free_address()}",
        "EDDYLINE_COMMON_STORE_ADDRESSES": free_address(),
    }
    async with process("eddyline.ingest", **settings):
        for leg in ("nats", "store"):
            await serving(listen, leg, is_serving=False)
        assert await asked(metrics, "/live") == (200, "live")
        assert await asked(metrics, "/started") == (200, "started")
        assert await asked(metrics, "/ready") == (503, "not ready: nats, store not reached")


async def test_delivery_is_not_ready_once_its_store_is_gone(tmp_path: Path) -> None:
    listen, metrics = free_address(), free_address()
    async with AsyncExitStack() as stack:
        async with store_process(tmp_path) as (_, store):
            await stack.enter_async_context(delivery_at(listen, store, EDDYLINE_DELIVERY_METRICS_LISTEN=metrics))
            assert await asked(metrics, "/ready") == (200, "ready")
        await serving(listen, "store", is_serving=False)
        assert await asked(metrics, "/ready") == (503, "not ready: store not reached")
        assert await asked(metrics, "/live") == (200, "live")
