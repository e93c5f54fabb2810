"""Endpoint and push of a role: bounded, off the event loop, and ended with the role."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import TopicNotFound
from eddyline.core.runtime.clock import SystemHost
from eddyline.core.runtime.settings import CommonSettings, SettingsError
from eddyline.core.telemetry import http_server as metrics_http
from eddyline.core.telemetry import metrics_otlp
from eddyline.core.telemetry.metrics import counter
from eddyline.core.telemetry.metrics_export import MetricsExport
from tests.support.hang import HANG_S
from tests.support.manual_clock import ManualClock
from tests.support.telemetry.metric_collector import collecting
from tests.support.telemetry.scrape import Scrape, http_get, scrape

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.runtime.clock import Clock
    from eddyline.core.telemetry.metrics import Metric


class Role:
    """A role that counts how often its metrics were collected."""

    def __init__(self, clock: Clock, *, listen: str = "127.0.0.1:0", otlp_url: str = "") -> None:
        common = CommonSettings(otlp_url=otlp_url, otlp_interval_ms=1_000)
        self.export = MetricsExport("store", listen, version="9", common=common, clock=clock, host=SystemHost())
        self.asked = 0

    async def collect(self) -> list[Metric]:
        self.asked += 1
        return [counter("asked_total", "Asked.", self.asked)]


@asynccontextmanager
async def running(clock: Clock | None = None, *, otlp_url: str = "") -> AsyncIterator[Role]:
    role = Role(clock or ManualClock(), otlp_url=otlp_url)
    async with role.export.running(role.collect):
        yield role


async def test_many_scrapers_share_one_text_until_it_is_old() -> None:
    clock = ManualClock()
    async with running(clock) as role:
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(scrape(role.export.address())) for _ in range(metrics_http.CONNECTIONS_MAX)]
        assert [task.result().value("asked_total") for task in asked] == [1] * len(asked)
        clock.advance(metrics_http.REUSE_S)
        assert (await scrape(role.export.address())).value("asked_total") == 2


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics?debug=1 HTTP/1.0", 200),
        (b"GET / HTTP/1.1", 404),
        (b"POST /metrics HTTP/1.1", 405),
        (b"HEAD / HTTP/1.1", 404),
        (b"HEADER /metrics HTTP/1.1", 405),
        (b"PRI * HTTP/2.0", 400),
        (b"\xff\x00", 400),
    ],
)
async def test_other_requests_are_refused_without_collecting_metrics(request_line: bytes, status: int) -> None:
    async with running() as role:
        assert (await http_get(role.export.address(), request_line + b"\r\n\r\n"))[0] == status
        assert role.asked == (status == 200)


async def raw(address: str, request: bytes) -> bytes:
    """All that comes back."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(HANG_S):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request)
        answer = await reader.read()
        writer.close()
    return answer


@pytest.mark.parametrize("path", [b"/metrics", b"/live", b"/started", b"/ready", b"/nothing"])
async def test_head_is_answered_as_get_is_without_the_body(path: bytes) -> None:
    async with running() as role:
        address = role.export.address()
        of_get = await raw(address, b"GET " + path + b" HTTP/1.1\r\n\r\n")
        of_head = await raw(address, b"HEAD " + path + b" HTTP/1.1\r\n\r\n")
    head, end, body = of_get.partition(b"\r\n\r\n")
    assert body
    assert of_head == head + end
    assert b"Content-Length: %d" % len(body) in head


async def test_other_method_gets_the_allowed_ones() -> None:
    async with running() as role:
        answer = await raw(role.export.address(), b"DELETE /metrics HTTP/1.1\r\n\r\n")
    assert b"\r\nAllow: GET, HEAD\r\n" in answer


async def test_silent_connection_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "READ_S", 0.05)
    async with running() as role, asyncio.timeout(HANG_S):
        assert await silent(role.export.address()) == b""


async def test_head_without_an_end_is_cut() -> None:
    async with running() as role, asyncio.timeout(HANG_S):
        assert await silent(role.export.address(), b"GET /" + b"x" * (64 << 10)) == b""


async def silent(address: str, said: bytes = b"") -> bytes:
    """Return the answer to a client that never completes its request."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(said)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_scraper_too_many_is_cut_and_one_that_went_makes_room() -> None:
    async with running() as role:
        host, _, port = role.export.address().rpartition(":")
        open_ones = [await asyncio.open_connection(host, int(port)) for _ in range(metrics_http.CONNECTIONS_MAX)]
        async with asyncio.timeout(HANG_S):
            assert await silent(role.export.address()) == b""
            open_ones[0][1].write(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert Scrape((await open_ones[0][0].read()).partition(b"\r\n\r\n")[2]).value("asked_total") == 1
        assert (await scrape(role.export.address())).value("asked_total") == 1
        for _, writer in open_ones:
            writer.close()


async def test_end_cuts_open_connections_and_frees_the_address() -> None:
    async with running() as role:
        address = role.export.address()
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(HANG_S):
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    assert role.export.address() == ""
    with pytest.raises(ConnectionRefusedError):
        await http_get(address)


async def test_defect_of_a_metric_costs_its_scrape_and_not_the_role(caplog: pytest.LogCaptureFixture) -> None:
    role = Role(ManualClock())

    async def broken() -> list[Metric]:
        return await role.collect() if role.asked else [counter("x", "X.", 1 // role.asked)]

    async with role.export.running(broken):
        assert await silent(role.export.address(), b"GET /metrics HTTP/1.1\r\n\r\n") == b""
        role.asked = 1
        assert (await scrape(role.export.address())).value("asked_total") == 2
    assert [record.getMessage() for record in caplog.records] == ["metrics broke"]


async def test_error_inside_the_block_is_not_wrapped() -> None:
    with pytest.raises(TopicNotFound):
        async with running():
            raise TopicNotFound("no topic x", topic="x")


async def test_cancellation_ends_it() -> None:
    inside = asyncio.Event()

    async def serve() -> None:
        async with running():
            inside.set()
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(serve())
        await inside.wait()
        serving.cancel()
    assert serving.cancelled()


async def test_address_in_use_refuses_the_start() -> None:
    async with running() as first:
        second = Role(ManualClock(), listen=first.export.address())
        with pytest.raises(SettingsError, match="for metrics: in use"):
            async with second.export.running(second.collect):
                pass


async def test_only_loopback_may_be_scraped() -> None:
    role = Role(ManualClock(), listen="0.0.0.0:0")
    with pytest.raises(SettingsError, match="refusing to listen"):
        async with role.export.running(role.collect):
            pass


async def test_without_endpoint_and_collector_nothing_is_collected_or_listens() -> None:
    role = Role(ManualClock(), listen="")
    async with role.export.running(role.collect):
        assert role.export.address() == ""
    assert role.asked == 0


async def test_push_comes_each_interval() -> None:
    clock = ManualClock()
    with collecting() as (collector, url):
        async with running(clock, otlp_url=url) as role, asyncio.timeout(HANG_S):
            for pushes in (1, 2):
                while len(collector.requests) < pushes:
                    clock.advance(1.0 if role.asked < pushes else 0.0)
                    await asyncio.sleep(0)
    said = collector.requests[1].resource_metrics[0].scope_metrics[0].metrics[0]
    assert (said.name, said.sum.data_points[0].as_int) == ("asked_total", 2)


async def test_collector_that_is_down_is_one_log_line_an_outage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_otlp, "EXPORT_S", 0.5)
    caplog.set_level(logging.INFO, "eddyline.core.telemetry.metrics_export")
    with collecting() as (_, url):
        pass
    clock = ManualClock()
    async with running(clock, otlp_url=url) as role, asyncio.timeout(HANG_S):
        while role.asked < 3:
            clock.advance(1.0)
            await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records] == ["metrics are not taken"]
    assert str(vars(caplog.records[0])["fields"]["reason"]).startswith("UNAVAILABLE: ")
