"""Times after which a connection is examined, or ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Times of a connection in seconds. Each is kept within `sweep_s`."""

    handshake_s: float = 20.0
    """From the accepted socket to the preface of HTTP/2, TLS included. gRPC: two minutes."""
    half_open_s: float = 1.0
    """Without a preface, after which a connection gives its place to a new one, if there are too many such. A handshake of
    TLS takes three round trips, so it is older only if its client is slow or silent."""
    header_block_s: float = 20.0
    """For a header block with its CONTINUATION frames."""
    keepalive_s: float = 10.0
    """Without a byte of the client, after which a PING asks for one. gRPC: two hours, so a peer that vanished goes
    unnoticed; load balancers drop an idle flow after a minute. 0 = never."""
    keepalive_timeout_s: float = 10.0
    """Without a byte after that PING, after which the connection ends."""
    age_s: float = 0.0
    """Age at which a connection drains, so that its client connects to the address that the name has then; plus or minus a
    tenth, so that clients of one start do not return together. 0 = never."""
    age_grace_s: float = 0.0
    """Time for its calls after that; 0 = without end."""
    drain_ping_s: float = 5.0
    """For the answer to the PING of a drain, after which new streams are refused without it."""
    linger_s: float = 5.0
    """For a closed connection's last bytes, after which the socket is aborted."""
    sweep_s: float = 1.0
    """Interval at which all connections are examined. One timer for all costs 0.3 us a connection, and none can leak."""
