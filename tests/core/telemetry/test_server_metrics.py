"""Metrics of a role's gRPC server: every series from the start, each count under its reason."""

from __future__ import annotations

from eddyline.core.telemetry.server_metrics import ServerCounts, ServerNames, server_metrics
from tests.support.telemetry.scrape import in_place

NAMES = ServerNames(
    connections="role_connections",
    opened_connections="role_opened_connections_total",
    ended_connections="role_ended_connections_total",
    calls="role_calls",
    opened_calls="role_opened_calls_total",
    reason="reason",
)


def test_all_series_exist_at_zero() -> None:
    seen = in_place(server_metrics(NAMES, ServerCounts()))
    assert seen.names == set(NAMES) - {NAMES.reason}
    assert [value for name in seen.names for value in seen.series(name).values()] == [0.0] * 9


def test_every_count_has_a_series() -> None:
    seen = in_place(server_metrics(NAMES, ServerCounts(*range(1, 10))))
    assert [seen.value(name) for name in (NAMES.connections, NAMES.opened_connections)] == [1, 2]
    assert [seen.value(name) for name in (NAMES.calls, NAMES.opened_calls)] == [3, 4]
    ended = seen.series(NAMES.ended_connections)
    assert ended == {("full",): 5, ("handshake",): 6, ("keepalive",): 7, ("flood",): 8, ("violation",): 9}
