"""A chunk's trace: that of its first sampled message; spans of other sampled messages become links.

`ingest.receive` begins when that message arrived, and ends when the chunk goes to the store. A chunk that never does
exports no span: its messages come again, and are sampled again.
Threading: event loop; the consumer calls it for every message while tracing is on, so it must not raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.telemetry import names as telemetry
from eddyline.core.telemetry.trace_context import TRACEPARENT

if TYPE_CHECKING:
    from eddyline.core.telemetry.tracing import Tracer
    from eddyline.ingest.copy.batch import Chunk

_NAME: Final = b"\r\n%b:" % TRACEPARENT.encode()


def trace_message(tracer: Tracer, chunk: Chunk, headers: bytes, revision: int, source: str) -> None:
    """Sample a message of a chunk, by the context in its headers or by chance."""
    parent = tracer.sample(_traceparent(headers))
    if parent is None:
        return
    if chunk.trace is None:
        chunk.trace = tracer.start_span(
            telemetry.SPAN_INGEST_RECEIVE,
            parent,
            {telemetry.ATTRIBUTE_SOURCE: source, telemetry.ATTRIBUTE_REVISION: revision},
        )
    elif parent.span_id:
        chunk.trace.link(parent)


def _traceparent(headers: bytes) -> str:
    """The header of that name, in any case; "" = absent or unreadable."""
    start = headers.lower().find(_NAME)
    if start < 0:
        return ""
    start += len(_NAME)
    end = headers.find(b"\r\n", start)
    return headers[start : end if end >= 0 else None].strip().decode("ascii", errors="replace")
