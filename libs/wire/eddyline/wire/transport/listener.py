"""Accepts connections, bounds them, examines them by one timer, and ends them.

L1: at most `connections_max` connections are open, and at most `half_open_max` of them have not sent their preface; a
further one is closed at once. One that is half open for `half_open_s` gives its place to the next. So many clients that come
together are served in turn, and peers that open sockets and say nothing keep others out for `half_open_s` at most.
L2: a loop that stood still has not read what came meanwhile, so its first sweep after that examines nothing.
L3: after `close` no socket, timer or connection is left.
Certificates: `add` takes a function that gives the TLS context, called for each new connection. A renewed certificate is
used from the next one on; open connections keep theirs.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from eddyline.wire.transport.connection import SocketConnection
from eddyline.wire.transport.counters import Counters, StreamBacklog

if TYPE_CHECKING:
    import random
    import socket
    import ssl
    from collections.abc import Callable

    from eddyline.wire.http2.limits import Limits
    from eddyline.wire.transport.connection import Service
    from eddyline.wire.transport.timeouts import Timeouts

CONNECTIONS_MAX: Final = 16_384
"""gRPC: unbounded. An idle connection costs 8 KiB and a descriptor."""
HALF_OPEN_MAX: Final = 1_024
"""As many as the backlog of the socket: a thousand clients may return at once. A handshake of TLS holds 50 KiB."""
AGE_SPREAD: Final = 0.1
ACCEPT_TURNS: Final = 4
"""Turns of asyncio's loop from an accepted socket to its closed transport: a task, `connection_made`, and the abort."""


class Listener:
    """Connections of one server. `start`, then `drain` and `close`."""

    def __init__(
        self,
        service: Service,
        *,
        limits: Limits,
        timeouts: Timeouts,
        rng: random.Random,
        connections_max: int = CONNECTIONS_MAX,
        half_open_max: int = HALF_OPEN_MAX,
    ) -> None:
        self.service = service
        self.limits = limits
        self.timeouts = timeouts
        self.loop = asyncio.get_running_loop()
        self.counters = Counters()
        self._rng = rng
        self._connections_max = connections_max
        self._half_open_max = half_open_max
        self._connections: dict[SocketConnection, None] = {}
        self._half_open: dict[SocketConnection, None] = {}
        """Those without a preface, the oldest first."""
        self._sockets: list[tuple[socket.socket, Callable[[], ssl.SSLContext] | None]] = []
        self._servers: list[asyncio.Server] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_at_s = 0.0
        self._was_late = False
        self._is_accepting = True
        self._all_closed: asyncio.Event = asyncio.Event()
        self._all_closed.set()

    def add(self, sockets: list[socket.socket], context: Callable[[], ssl.SSLContext] | None) -> None:
        """Add bound sockets, which the listener closes.

        `context` gives a prepared one for each connection; None = no TLS.
        """
        self._sockets.extend((one, context) for one in sockets)

    async def start(self) -> None:
        """Accept connections."""
        for listening, context in self._sockets:
            self._servers.append(await self.loop.create_server(self._factory(context), sock=listening))
        self._sockets.clear()
        self._schedule_sweep(self.loop.time())

    async def stop_accepting(self) -> None:
        """Close the listening sockets; open connections stay. Those that the loop has accepted meanwhile are refused.

        asyncio 3.11 loses a socket that it has accepted in the turn in which its server closes. So the loop stops to look at
        the listening sockets first.
        """
        self._is_accepting = False
        for server in self._servers:
            for listening in server.sockets:
                self.loop.remove_reader(listening.fileno())
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        for unused, _ in self._sockets:
            unused.close()
        self._sockets.clear()

    async def drain(self) -> None:
        """Stop accepting, and announce the end on every connection."""
        await self.stop_accepting()
        for connection in list(self._connections):
            connection.drain()

    async def wait_closed(self, timeout_s: float) -> None:
        """Wait until no connection is open, for `timeout_s` at most."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_closed.wait()
        except TimeoutError:
            pass

    async def close(self) -> None:
        """End all connections: what is due is written, within `linger_s`."""
        await self.stop_accepting()
        for connection in list(self._connections):
            connection.end()
        await self.wait_closed(self.timeouts.linger_s)
        for connection in list(self._connections):
            connection.abort()
        await self._all_closed.wait()
        if self._sweep is not None:
            self._sweep.cancel()

    def backlogs(self) -> list[StreamBacklog]:
        """Return what the clients have not taken, for each open stream."""
        now_s = self.loop.time()
        return [backlog for connection in self._connections for backlog in connection.backlogs(now_s)]

    # -- for connections

    def admit(self, connection: SocketConnection) -> bool:
        counters = self.counters
        counters.connections_total += 1
        is_full = counters.connections >= self._connections_max or not self._has_half_open_place()
        if is_full or not self._is_accepting:
            counters.connections_refused += 1
            return False
        counters.connections += 1
        self._connections[connection] = self._half_open[connection] = None
        counters.half_open = len(self._half_open)
        self._all_closed.clear()
        return True

    def on_preface(self, connection: SocketConnection) -> None:
        self._half_open.pop(connection, None)
        self.counters.half_open = len(self._half_open)

    def release(self, connection: SocketConnection) -> None:
        del self._connections[connection]
        self.counters.connections -= 1
        self._half_open.pop(connection, None)
        self.counters.half_open = len(self._half_open)
        if not self._connections:
            self._all_closed.set()

    # -- parts

    def _has_half_open_place(self) -> bool:
        """Keep L1, and return whether another connection may be half open."""
        if len(self._half_open) < self._half_open_max:
            return True
        oldest = next(iter(self._half_open))
        if self.loop.time() - oldest.opened_s < self.timeouts.half_open_s:
            return False
        del self._half_open[oldest]
        self.counters.handshakes_failed += 1
        oldest.abort()
        return True

    def _factory(self, context: Callable[[], ssl.SSLContext] | None) -> Callable[[], SocketConnection]:
        def make() -> SocketConnection:
            age_s = self.timeouts.age_s * (1 + self._rng.uniform(-AGE_SPREAD, AGE_SPREAD))
            return SocketConnection(self, context() if context is not None else None, age_s=age_s)

        return make

    def _examine(self) -> None:
        now_s = self.loop.time()
        # Keep L2. uvloop runs timers before it reads sockets. Of two late sweeps in a row the second one counts.
        self._was_late = not self._was_late and now_s - self._sweep_at_s > self.timeouts.sweep_s
        if not self._was_late:
            for connection in list(self._connections):
                connection.examine(now_s)
        self._schedule_sweep(now_s)

    def _schedule_sweep(self, now_s: float) -> None:
        self._sweep_at_s = now_s + self.timeouts.sweep_s
        self._sweep = self.loop.call_at(self._sweep_at_s, self._examine)
