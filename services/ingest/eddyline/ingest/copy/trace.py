"""A chunk's trace: that of the first sampled message in it; those of others it names as links.

`ingest.receive` begins when that message came, and ends when the chunk goes to the store. One that never does is not told
of: its messages come again, and are sampled anew.
Threading: event loop; called by the consumer for every message where anything is traced, so it must not raise.
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
    """Sample a message that went into a chunk, by the context in its headers or by chance."""
    parent = tracer.sampled(_traceparent(headers))
    if parent is None:
        return
    if chunk.trace is None:
        chunk.trace = tracer.begin(
            telemetry.SPAN_INGEST_RECEIVE,
            parent,
            {telemetry.ATTRIBUTE_SOURCE: source, telemetry.ATTRIBUTE_REVISION: revision},
        )
    elif parent.span_id:
        chunk.trace.link(parent)


def _traceparent(headers: bytes) -> str:
    """The header of that name, in any case; "" = none that can be read."""
    start = headers.lower().find(_NAME)
    if start < 0:
        return ""
    start += len(_NAME)
    end = headers.find(b"\r\n", start)
    return headers[start : end if end >= 0 else None].strip().decode("ascii", errors="replace")
