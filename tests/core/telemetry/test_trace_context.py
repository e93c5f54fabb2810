"""The trace context: W3C headers are read, malformed ones ignored, written ones read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.telemetry.trace_context import TraceContext, parse_traceparent, traceparent_of

TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
SPAN_ID = 0xB7AD6B7169203331
SAID = f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01"

contexts = st.builds(
    TraceContext, st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1), is_sampled=st.booleans()
)


class Call:
    """A call with metadata."""

    def __init__(self, *pairs: tuple[str, str | bytes]) -> None:
        self.pairs = pairs

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...] | None:
        return self.pairs or None


@given(contexts)
def test_written_header_is_read_back(context: TraceContext) -> None:
    assert parse_traceparent(context.header()) == context


@given(st.text() | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{30,34}-[0-9a-f]{15,17}-[0-9a-f]{2}", fullmatch=True))
def test_header_is_read_and_written_unchanged_or_malformed(text: str) -> None:
    found = parse_traceparent(text)
    if found is not None:
        assert found.trace_id
        assert found.span_id
        assert text[3:52] == found.header()[3:52]
        assert found.is_sampled is bool(int(text[53:55], 16) & 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        SAID.upper(),
        SAID + " ",
        SAID + "-x",
        "ff" + SAID[2:],
        SAID.replace(f"{TRACE_ID:032x}", "0" * 32),
        SAID.replace(f"{SPAN_ID:016x}", "0" * 16),
        SAID[:-3],
    ],
)
def test_malformed_is_none(text: str) -> None:
    assert parse_traceparent(text) is None


def test_later_version_is_read_as_far_as_it_is_known() -> None:
    assert parse_traceparent("01" + SAID[2:-2] + "03-more") == TraceContext(TRACE_ID, SPAN_ID)


def test_call_has_the_header_in_its_metadata() -> None:
    assert traceparent_of(Call(("x", "y"), ("traceparent", SAID))) == SAID
    assert traceparent_of(Call(("x", "y"), ("traceparent", b"bytes"))) == ""
    assert traceparent_of(Call()) == ""
