"""Export of spans: each second; an outage of the collector costs its spans and one log line."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.core.runtime.clock import SystemHost
from eddyline.core.runtime.settings import CommonSettings, SettingsError
from eddyline.core.telemetry import trace_export, trace_otlp
from eddyline.core.telemetry.trace_context import TraceContext
from eddyline.core.telemetry.trace_export import TraceExport
from eddyline.core.telemetry.tracing import Tracer
from tests.support.cluster.processes import free_address
from tests.support.hang import HANG_S
from tests.support.manual_clock import ManualClock
from tests.support.telemetry.trace_collector import trace_collector

if TYPE_CHECKING:
    from collections.abc import Callable

PARENT = TraceContext(0xABC, 0xDEF)


def exported(clock: ManualClock, url: str, *, ratio: float = 1.0) -> tuple[Tracer, TraceExport]:
    tracer = Tracer(ratio, clock=clock, rng=Random(1))
    common = CommonSettings(otlp_url=url, trace_ratio=ratio)
    return tracer, TraceExport("store", tracer, version="9", common=common, clock=clock, host=SystemHost())


async def passing(clock: ManualClock, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not holds():
            clock.advance(0.1)
            await asyncio.sleep(0)


async def test_span_arrives_as_it_was_made() -> None:
    clock = ManualClock()
    async with trace_collector() as collector:
        tracer, export = exported(clock, collector.url)
        async with export.running():
            span = tracer.start_span("one", PARENT, {"topic": "t", "seq": 7})
            span.event("durable")
            span.link(TraceContext(0x77, 0x88))
            clock.advance(0.25)
            span.end("READ_ONLY")
            await passing(clock, lambda: tracer.exported_count == 1)
        (seen,) = collector.spans
        start_ns = ManualClock().now_ms() * 1_000_000
        assert (seen.service, seen.name, seen.error) == ("store", "one", "READ_ONLY")
        assert (seen.trace_id, seen.parent_id) == (f"{0xABC:032x}", f"{0xDEF:016x}")
        assert seen.span_id == f"{span.context.span_id:016x}"
        assert (seen.start_ns, seen.end_ns) == (start_ns, start_ns + 250_000_000)
        assert seen.attributes == {"topic": "t", "seq": 7}
        assert (seen.events, seen.links) == (("durable",), (f"{0x77:032x}",))
        (resource,) = collector.resources
        assert (resource["service.namespace"], resource["service.version"]) == ("eddyline", "9")


async def test_waiting_spans_are_pushed_at_the_end() -> None:
    clock = ManualClock()
    async with trace_collector() as collector:
        tracer, export = exported(clock, collector.url)
        async with export.running():
            tracer.start_span("last", PARENT).end()
        assert [span.name for span in collector.spans] == ["last"]
        assert tracer.exported_count == 1


async def test_many_go_in_messages_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_export, "PUSH_SPANS_MAX", 3)
    clock = ManualClock()
    async with trace_collector() as collector:
        tracer, export = exported(clock, collector.url)
        async with export.running():
            for number in range(8):
                tracer.start_span(str(number), PARENT).end()
            await passing(clock, lambda: tracer.exported_count == 8)
        assert [span.name for span in collector.spans] == list("01234567")
        assert len(collector.resources) == 3


async def test_collector_that_is_down_costs_its_spans_and_one_log_line_an_outage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_otlp, "EXPORT_S", 0.3)
    caplog.set_level(logging.INFO, "eddyline.core.telemetry.trace_export")
    clock = ManualClock()
    tracer, export = exported(clock, f"http://{free_address()}")
    async with export.running():
        for dropped in (1, 2, 3):
            tracer.start_span("lost", PARENT).end()
            await passing(clock, lambda dropped=dropped: tracer.dropped_count == dropped)  # type: ignore[misc]
        tracer.start_span("left", PARENT).end()
    assert [record.getMessage() for record in caplog.records] == ["traces are not taken"]
    assert str(vars(caplog.records[0])["fields"]["reason"]).startswith("UNAVAILABLE: ")
    assert tracer.exported_count == 0


async def test_each_outage_has_a_reason_although_the_exporter_s_log_drops_repeats(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_otlp, "EXPORT_S", 0.3)
    for _ in range(2):
        clock = ManualClock()
        tracer, export = exported(clock, f"http://{free_address()}")
        async with export.running():
            tracer.start_span("lost", PARENT).end()
            await passing(clock, lambda tracer=tracer: tracer.dropped_count == 1)  # type: ignore[misc]
    reasons = [str(vars(record)["fields"]["reason"]) for record in caplog.records]
    assert [reason.partition(":")[0] for reason in reasons] == ["UNAVAILABLE", "UNAVAILABLE"]


async def test_error_inside_the_block_is_not_wrapped() -> None:
    _, export = exported(ManualClock(), f"http://{free_address()}")
    with pytest.raises(LookupError):
        async with export.running():
            raise LookupError


async def test_off_makes_no_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(trace_export, "OtlpSpanExporter", lambda *_, **__: made.append("exporter"))
    _, export = exported(ManualClock(), "", ratio=0.0)
    async with export.running():
        pass
    assert made == []


def test_ratio_without_a_collector_is_refused() -> None:
    with pytest.raises(SettingsError, match="TRACE_RATIO needs EDDYLINE_COMMON_OTLP_URL"):
        CommonSettings(trace_ratio=0.1)
    with pytest.raises(SettingsError, match=r"TRACE_RATIO is 1\.5, not within 0 to 1"):
        CommonSettings(trace_ratio=1.5, otlp_url="http://collector:4317")
