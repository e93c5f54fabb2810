"""Traces through delivery, from the store's answer to each subscriber's transport: bounded, and present in the frame."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from eddyline.core.telemetry import names as telemetry
from eddyline.core.telemetry.trace_context import parse_traceparent
from eddyline.delivery.feed.trace import SENDS_MAX
from tests.support.delivery.role import earliest, served_delivery, tail
from tests.support.store.simulated import append, kv_topic, log_topic, puts, rows

if TYPE_CHECKING:
    from eddyline.core.telemetry.tracing import EndedSpan
    from eddyline.v1 import delivery_pb2 as pb
    from tests.support.delivery.role import ServedDelivery, Watch

GIVEN = f"00-{7:032x}-{9:016x}-01"
ON = 1e-12


def named(spans: list[EndedSpan], name: str) -> list[EndedSpan]:
    return [span for span in spans if span.name == name]


async def records_of(watch: Watch) -> pb.WatchTopicsResponse:
    """Return the next frame with records."""
    while True:
        frame = await watch.next()
        if frame.HasField("rows"):
            return frame


async def ended(served: ServedDelivery, count: int) -> list[EndedSpan]:
    """Wait for `count` ended spans."""
    spans: list[EndedSpan] = []

    def are_there() -> bool:
        spans.extend(served.role.tracer.drain())
        return len(spans) >= count

    await served.until(are_there)
    return spans


async def test_commit_is_followed_to_its_subscriber() -> None:
    async with served_delivery(trace_ratio=ON) as served:
        await log_topic(served.store)
        async with served.watch(tail("log")) as watch:
            await watch.until_kind("caught_up")
            await append(served.store, "log", rows("untraced"))
            assert (await records_of(watch)).traceparent == ""
            await append(served.store, "log", rows("a", "b"), traceparent=GIVEN)
            frame = await records_of(watch)
            spans = await ended(served, 3)
    (commit,), (received,), (sent,) = (
        named(spans, name)
        for name in (telemetry.SPAN_STORE_COMMIT, telemetry.SPAN_DELIVERY_RECEIVE, telemetry.SPAN_DELIVERY_SEND)
    )
    assert received.parent == commit.context
    assert sent.parent == received.context
    assert dict(received.attributes) == {telemetry.ATTRIBUTE_TOPIC: "log", telemetry.ATTRIBUTE_SEQ: 3}
    assert parse_traceparent(frame.traceparent) == received.context


async def test_only_the_first_subscribers_have_spans() -> None:
    async with served_delivery(trace_ratio=ON) as served, AsyncExitStack() as stack:
        await log_topic(served.store)
        watches = [await stack.enter_async_context(served.watch(tail("log"))) for _ in range(SENDS_MAX + 3)]
        for watch in watches:
            await watch.until_kind("caught_up")
        await append(served.store, "log", rows("a"), traceparent=GIVEN)
        for watch in watches:
            assert (await records_of(watch)).traceparent
        spans = await ended(served, 2 + SENDS_MAX)
        assert len(named(spans, telemetry.SPAN_DELIVERY_SEND)) == SENDS_MAX
        assert served.role.tracer.drain() == []


async def test_subscriber_that_receives_no_record_of_it_has_no_span() -> None:
    async with served_delivery(trace_ratio=ON) as served:
        await kv_topic(served.store)
        async with served.watch(tail("kv", b"x")) as watch:
            await watch.until_kind("caught_up")
            await append(served.store, "kv", puts(("hidden", "1")), traceparent=GIVEN)
            await append(served.store, "kv", puts(("x", "1")))
            assert (await records_of(watch)).traceparent == ""
            spans = await ended(served, 2)
    assert {span.name for span in spans} == {telemetry.SPAN_STORE_COMMIT, telemetry.SPAN_DELIVERY_RECEIVE}


async def test_records_read_from_the_log_are_untraced() -> None:
    async with served_delivery(trace_ratio=ON) as served:
        await log_topic(served.store)
        await append(served.store, "log", rows("a"), traceparent=GIVEN)
        async with served.watch(earliest("log")) as watch:
            assert (await records_of(watch)).traceparent == ""


async def test_tracing_switched_off_makes_no_spans() -> None:
    async with served_delivery() as served:
        await log_topic(served.store)
        async with served.watch(tail("log")) as watch:
            await watch.until_kind("caught_up")
            await append(served.store, "log", rows("a"), traceparent=GIVEN)
            assert (await records_of(watch)).traceparent == ""
        assert served.role.tracer.drain() == []
