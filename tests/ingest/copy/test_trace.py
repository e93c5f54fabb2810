"""A chunk's trace: that of its first sampled message, from the headers as NATS carries them; later ones are links."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.telemetry import names as telemetry
from eddyline.core.telemetry.trace_context import parse_traceparent
from eddyline.core.telemetry.tracing import Tracer
from eddyline.ingest.copy.batch import Chunk
from eddyline.ingest.copy.trace import trace_message
from tests.support.manual_clock import ManualClock


def traceparent(number: int, flags: str = "01") -> str:
    return f"00-{number:032x}-{number:016x}-{flags}"


def headers(*lines: str) -> bytes:
    return ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()


def tracer(ratio: float = 1e-12) -> Tracer:
    return Tracer(ratio, clock=ManualClock(), rng=Random(1))


def test_first_sampled_message_is_the_parent_and_others_are_links() -> None:
    made, chunk = tracer(), Chunk()
    blocks = [b"", headers("traceparent: " + traceparent(1, "00"))]
    blocks += [headers("traceparent: " + traceparent(number)) for number in (2, 3, 4)]
    for revision, block in enumerate(blocks, start=10):
        trace_message(made, chunk, block, revision, "s")
    assert chunk.trace is not None
    chunk.trace.end_and_start(telemetry.SPAN_INGEST_APPLY).end()
    received, applied = made.drain()
    assert received.parent == parse_traceparent(traceparent(2))
    assert [link.trace_id for link in received.links] == [3, 4]
    assert dict(received.attributes) == {telemetry.ATTRIBUTE_SOURCE: "s", telemetry.ATTRIBUTE_REVISION: 12}
    assert applied.parent == received.context


def test_message_by_chance_begins_a_trace_and_a_second_one_adds_nothing() -> None:
    made, chunk = tracer(1.0), Chunk()
    for revision in (1, 2):
        trace_message(made, chunk, b"", revision, "s")
    assert chunk.trace is not None
    chunk.trace.end()
    (received,) = made.drain()
    assert received.parent is None
    assert received.links == ()


@pytest.mark.parametrize(
    "line", ["traceparent:{}", "Traceparent: {}", "TRACEPARENT:  {} ", "a: b\r\ntraceparent: {}\r\nc: d"]
)
def test_trace_header_is_read_in_any_case_and_place(line: str) -> None:
    made, chunk = tracer(), Chunk()
    trace_message(made, chunk, headers(line.format(traceparent(5))), 1, "s")
    assert chunk.trace is not None
    assert chunk.trace.context.trace_id == 5


@given(st.binary(max_size=200) | st.binary(max_size=80).map(lambda rest: b"NATS/1.0\r\ntraceparent:" + rest))
def test_no_header_block_is_too_strange(block: bytes) -> None:
    trace_message(tracer(), Chunk(), block, 1, "s")
