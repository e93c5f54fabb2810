"""Which ports a local cluster takes."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LOOPBACK: Final = "127.0.0.1"
PORTS_DEFAULT: Final = {
    "nats": 4222,
    "store": 7701,
    "ingest": 7702,
    "delivery": 7703,
    "store metrics": 7711,
    "ingest metrics": 7712,
    "delivery metrics": 7713,
}
METRICS: Final = " metrics"
"""Behind a role's name: the port where its metrics are scraped."""


def choose_ports(remembered: Mapping[str, int], *, free_ports: bool, more: Iterable[str] = ()) -> dict[str, int]:
    """A port a part and one a role's metrics: the default, the remembered one where that is taken, else any free one.
    `more` = the names of further ones, which have no default.

    So a cluster is where the README says whenever it can be. `free_ports` = the defaults are not even tried, so that
    several clusters of one machine stay out of each other's way; a restart keeps what it had.
    """
    chosen: dict[str, int] = {}
    for name in (*PORTS_DEFAULT, *more):
        wanted = (0 if free_ports else PORTS_DEFAULT.get(name, 0), remembered.get(name, 0))
        others = set(chosen.values())
        free = [port for port in wanted if port and port not in others and _is_free(port)]
        chosen[name] = free[0] if free else _free_port(others | set(PORTS_DEFAULT.values()))
    return chosen


def free_addresses(count: int) -> list[str]:
    """So many addresses of this machine, all different, where nobody listens now."""
    taken = set(PORTS_DEFAULT.values())
    for _ in range(count):
        taken.add(_free_port(taken))
    return [f"{LOOPBACK}:{port}" for port in taken - set(PORTS_DEFAULT.values())]


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers bind: a connection in TIME_WAIT does not make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _free_port(taken: set[int]) -> int:
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((LOOPBACK, 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port
