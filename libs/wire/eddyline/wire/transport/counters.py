"""Counts of a listener and its connections, in place of gRPC's channelz, and what waits in each stream."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Counts since the start. `connections` and `half_open` are current values."""

    connections: int = 0
    half_open: int = 0
    """Connections whose preface has not come: their TLS handshake may be under way."""
    connections_total: int = 0
    connections_refused: int = 0
    """Closed at once, since there were too many."""
    handshakes_failed: int = 0
    """TLS refused, not HTTP/2, or too late."""
    keepalive_timeouts: int = 0
    connections_failed: Counter[str] = field(default_factory=Counter)
    """Ended by GOAWAY with an error, by the code's name. ENHANCE_YOUR_CALM = a flood that was cut."""
    streams_total: int = 0
    received_bytes: int = 0
    """Of HTTP/2, without TLS; as is `sent_bytes`."""
    sent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StreamBacklog:
    """Bytes of a stream that its peer has not taken."""

    peer: str
    path: str
    stream_id: int
    queued_bytes: int
    """Bytes that wait here, since the peer's window or its socket is full."""
    queued_age_s: float
    """Time for which the first of them has waited; 0 = none waits."""
    uncredited_bytes: int
    """Bytes sent for which the peer has not given back its window: its program may not have read them. Clients give windows
    back in steps, so a few KiB say nothing."""
    uncredited_age_s: float
    """Time for which the client has not given back the window of the first of these bytes, at least; 0 = there are none."""
