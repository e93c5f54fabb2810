"""Which ports a local cluster takes: the remembered or preferred one where it is free, else any free one."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOPBACK: Final = "127.0.0.1"
PORTS_DEFAULT: Final = {"nats": 4222, "store": 7701, "ingest": 7702, "delivery": 7703}


def choose_ports(remembered: Mapping[str, int], *, free_ports: bool) -> dict[str, int]:
    """A port a part. A remembered one is kept, so that a restart is found where the cluster was; `free_ports` = the
    defaults are not even tried, so that several clusters of one machine stay out of each other's way."""
    chosen: dict[str, int] = {}
    for name, default in PORTS_DEFAULT.items():
        preferred = remembered.get(name, 0) or (0 if free_ports else default)
        if preferred and _is_free(preferred) and preferred not in chosen.values():
            chosen[name] = preferred
        else:
            chosen[name] = _free_port(set(chosen.values()))
    return chosen


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
