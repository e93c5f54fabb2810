"""Where in a trace something happens, as it travels: W3C's `traceparent`, in a NATS header, in gRPC metadata, in a frame.

    00-<trace id, 32 hex digits>-<parent id, 16 hex digits>-<flags, 2 hex digits>

What is malformed is no context: a caller's header never fails what it came with. Of a later version the first four parts
are read, as the recommendation says. `tracestate` is not carried on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TRACEPARENT: Final = "traceparent"
"""Its name, as NATS and gRPC write it."""

_HEADER: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?"
)
_SAMPLED: Final = 1


class TraceContext(NamedTuple):
    """A span by its ids, and whether its trace is kept."""

    trace_id: int
    span_id: int
    is_sampled: bool = True

    def header(self) -> str:
        """As it travels."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"


class SeqTrace(NamedTuple):
    """A commit that is traced, by its last seq, and its `traceparent`."""

    seq: int
    traceparent: str


class CalledContext(Protocol):
    """A call as its handler sees it."""

    def invocation_metadata(self) -> Iterable[Sequence[str | bytes]] | None:
        """Keys and values."""


def parse_traceparent(text: str) -> TraceContext | None:
    """What a header says; None = nothing that can be read."""
    found = _HEADER.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if rest is not None and version == "00":
        return None
    return TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))


def traceparent_of(context: CalledContext) -> str:
    """The header that a call came with; "" = none."""
    for key, value in context.invocation_metadata() or ():
        if key == TRACEPARENT:
            return value if isinstance(value, str) else ""
    return ""
