"""Metrics of a role's gRPC server: connections, calls, and the connections that the server ended.

Each role gives its names of them. With `EDDYLINE_COMMON_WIRE=grpc` all are 0, since gRPC's core shows none.
Threading: pure functions.
"""

from __future__ import annotations

from typing import NamedTuple

from eddyline.core.telemetry.metrics import Metric, MetricPoint, counter, counters, gauge


class ServerCounts(NamedTuple):
    """Counts since the start; `connections` and `calls` are those open now. The last five are connections that it ended."""

    connections: int = 0
    opened_connections: int = 0
    calls: int = 0
    opened_calls: int = 0
    refused: int = 0
    """There were too many."""
    handshakes: int = 0
    """TLS failed, it was not HTTP/2, or it came too late."""
    keepalives: int = 0
    """The client did not answer a PING."""
    floods: int = 0
    """Cut for too many control frames."""
    violations: int = 0
    """The client broke HTTP/2."""


class ServerNames(NamedTuple):
    """Names of one role's metrics, and of the label that has the reason of an end."""

    connections: str
    opened_connections: str
    ended_connections: str
    calls: str
    opened_calls: str
    reason: str


def server_metrics(names: ServerNames, counts: ServerCounts) -> list[Metric]:
    """Return the metrics of a role's server."""
    ended = {
        "full": counts.refused,
        "handshake": counts.handshakes,
        "keepalive": counts.keepalives,
        "flood": counts.floods,
        "violation": counts.violations,
    }
    return [
        gauge(names.connections, "Open connections of clients.", counts.connections),
        counter(names.opened_connections, "Connections that clients opened.", counts.opened_connections),
        gauge(names.calls, "Calls that are open.", counts.calls),
        counter(names.opened_calls, "Calls that clients opened, streams too.", counts.opened_calls),
        counters(
            names.ended_connections,
            "Connections that the server ended, by the reason.",
            (names.reason,),
            (MetricPoint(count, (reason,)) for reason, count in ended.items()),
        ),
    ]
