"""Trace context in transit: W3C's `traceparent`, in a NATS header, in gRPC metadata, in a frame.

    00-<trace id, 32 hex digits>-<parent id, 16 hex digits>-<flags, 2 hex digits>

A malformed header counts as none: it never fails the call or message that it came with. Of a later version the first four
parts are read, as the W3C recommendation demands. `tracestate` is not forwarded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TRACEPARENT: Final = "traceparent"
"""Name of the header, in the case that NATS and gRPC use."""

_HEADER: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?"
)
_SAMPLED: Final = 1


class TraceContext(NamedTuple):
    """Ids of a span, and whether its trace is sampled."""

    trace_id: int
    span_id: int
    is_sampled: bool = True

    def header(self) -> str:
        """Return the context as a `traceparent` header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"


class SeqTrace(NamedTuple):
    """A traced commit: its last seq and its `traceparent`."""

    seq: int
    traceparent: str


class CalledContext(Protocol):
    """The part of a servicer context that has the metadata."""

    def invocation_metadata(self) -> Iterable[Sequence[str | bytes]] | None:
        """Return the metadata as keys and values."""


def parse_traceparent(text: str) -> TraceContext | None:
    """Parse a header; None = it is malformed."""
    match = _HEADER.fullmatch(text)
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if rest is not None and version == "00":
        return None
    return TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))


def traceparent_of(context: CalledContext) -> str:
    """Return the header of a call; "" = none."""
    return traceparent_in(context.invocation_metadata())


def traceparent_in(metadata: Iterable[Sequence[str | bytes]] | None) -> str:
    """Return the header in a call's metadata; "" = none."""
    for key, value in metadata or ():
        if key == TRACEPARENT:
            return value if isinstance(value, str) else ""
    return ""
