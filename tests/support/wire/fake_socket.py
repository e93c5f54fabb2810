"""A `SocketConnection` on a transport and a loop that a test moves: no socket, no time of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from eddyline.wire.http2.limits import Limits
from eddyline.wire.transport.connection import SocketConnection
from eddyline.wire.transport.counters import Counters
from eddyline.wire.transport.timeouts import Timeouts
from tests.support.wire.frames import Frame, frames_of
from tests.support.wire.lenient import LenientService

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Callable

    from eddyline.wire.http2.stream import Http2Stream
    from eddyline.wire.transport.connection import Service


class FakeLoop:
    """Time and callbacks of the next turn."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self._soon: list[Callable[[], object]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._soon.append(callback)

    def turn(self) -> None:
        """Run what was scheduled."""
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()


class FakeTransport:
    """Takes writes."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_closed = self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, _name: str) -> object:
        return ("127.0.0.1", 5_000)

    def set_write_buffer_limits(self, high: int) -> None:
        assert high


class HoldingService(LenientService):
    """Keeps streams open, and lists them."""

    def __init__(self) -> None:
        self.streams: list[Http2Stream] = []

    def on_request(self, stream: Http2Stream, _connection: SocketConnection) -> None:
        self.streams.append(stream)


class FakeOwner:
    """A listener of one connection."""

    def __init__(self, service: Service | None = None, timeouts: Timeouts | None = None) -> None:
        self.fake_loop = FakeLoop()
        self.loop = cast("asyncio.AbstractEventLoop", self.fake_loop)
        self.service = service or LenientService()
        self.limits = Limits()
        self.timeouts = timeouts or Timeouts()
        self.counters = Counters()
        self.admits = True
        self.released = 0
        self.prefaces = 0

    def admit(self, _connection: SocketConnection) -> bool:
        return self.admits

    def on_preface(self, _connection: SocketConnection) -> None:
        self.prefaces += 1

    def release(self, _connection: SocketConnection) -> None:
        self.released += 1


class FakeSocket:
    """A connection with its transport."""

    def __init__(
        self, owner: FakeOwner | None = None, *, context: ssl.SSLContext | None = None, age_s: float = 0.0
    ) -> None:
        self.owner = owner or FakeOwner()
        self.loop = self.owner.fake_loop
        self.connection = SocketConnection(self.owner, context, age_s=age_s)
        self.transport = FakeTransport()
        self.connection.connection_made(cast("asyncio.BaseTransport", self.transport))

    def send(self, *parts: bytes) -> list[Frame]:
        """Give bytes of the client, and return the frames that are written."""
        for part in parts:
            self.connection.data_received(part)
        return self.written()

    def written(self) -> list[Frame]:
        """Frames that were written since the last call."""
        self.loop.turn()
        frames = frames_of(b"".join(self.transport.writes))
        self.transport.writes.clear()
        return frames

    def pass_time(self, seconds: float) -> list[Frame]:
        """Let time pass, and examine the connection."""
        self.loop.now_s += seconds
        self.connection.examine(self.loop.now_s)
        return self.written()
