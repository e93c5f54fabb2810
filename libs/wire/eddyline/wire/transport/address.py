"""Listening sockets for an address as gRPC writes it: `host:port`, `[::1]:port`, `unix:path`."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from typing import Final

BACKLOG: Final = 1_024
"""Connections that the kernel accepts ahead. asyncio: 100, fewer than subscribers that return together."""
_UNIX: Final = "unix:"
_NOT_HERE: Final = frozenset((errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT))


def bind(address: str) -> list[socket.socket]:
    """Return a listening socket for each address that the host has here; all have one port. The caller closes them.

    Port 0 = a free one. No other process can bind the same port (no SO_REUSEPORT).

    Raises:
        OSError: the address is in use, or not one of this host.
        ValueError: it has no port.
    """
    if address.startswith(_UNIX):
        return [_bind_unix(address.removeprefix(_UNIX))]
    host, _, port_text = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port_text.isascii() or not port_text.isdigit():
        raise ValueError(f"{address} has no port")
    port = int(port_text)
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with ExitStack() as on_error:
        sockets: list[socket.socket] = []
        missing: OSError | None = None
        for family, _, _, _, resolved in dict.fromkeys(found):
            try:
                listening = _bind(family, str(resolved[0]), port)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
                continue
            on_error.enter_context(listening)
            sockets.append(listening)
            port = listening.getsockname()[1]
        if not sockets:
            raise missing or OSError(errno.EADDRNOTAVAIL, "the host has no address here")
        on_error.pop_all()
        return sockets


def _bind(family: int, host: str, port: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # "::" takes IPv4 too, as with gRPC; a name that has both addresses binds each by itself.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        listening.bind((host, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _bind_unix(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening
