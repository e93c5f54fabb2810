"""A channel whose certificate and authorities are renewed while it is open.

gRPC's credentials are fixed for the life of a channel. So the first call after a renewal opens a new channel, and with it
a new connection. Calls in flight stay on the old one: TLS verifies certificates in the handshake only. When that
connection ends, its calls end, and a repeated call uses the new certificates. An old channel is closed after its last
call has ended, at the next `CurrentTls.close_idle`.
I1: no call begins with credentials that were replaced. I2: after each `close_idle` there are at most as many channels as
calls in flight, and one.
Rejected: closing old channels after a time, which ends streams as if their caller had; gRPC's own watching of files,
which its Python library does not have.
Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from eddyline.core.transport.channel_wrapper import ChannelWrapper

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

    from eddyline.core.tls.files import ClientTls

Call = TypeVar("Call")


class CurrentTls:
    """TLS credentials of a client, which its owner may replace while channels use them.

    The owner sets `newest`, and calls `close_idle` now and then.
    """

    def __init__(self, tls: ClientTls) -> None:
        self.newest = tls
        self._idle: list[grpc.aio.Channel] = []

    def retire(self, channel: grpc.aio.Channel) -> None:
        """Close `channel`, which is not the newest and has no calls, at the next `close_idle`."""
        self._idle.append(channel)

    async def close_idle(self) -> None:
        """Close all retired channels."""
        while self._idle:
            await self._idle.pop().close()


class _OpenChannel:
    """A channel, the credentials that it was opened with, and how many calls use it."""

    __slots__ = ("call_count", "channel", "tls")

    def __init__(self, tls: ClientTls, channel: grpc.aio.Channel) -> None:
        self.tls = tls
        self.channel = channel
        self.call_count = 0


class ReloadingChannel(ChannelWrapper):
    """A channel that each call uses with the newest credentials. Closing it closes all that `open_with` opened."""

    def __init__(self, credentials: CurrentTls, open_with: Callable[[ClientTls], grpc.aio.Channel]) -> None:
        self._credentials = credentials
        self._open_with = open_with
        self._newest = _OpenChannel(credentials.newest, open_with(credentials.newest))
        self._old: set[_OpenChannel] = set()

    async def close(self, grace: float | None = None) -> None:
        for opened in (self._newest, *self._old):
            await opened.channel.close(grace)

    def _current(self) -> grpc.aio.Channel:
        return self._open_newest().channel

    def _open_newest(self) -> _OpenChannel:
        """Return the newest channel; open it if the credentials were replaced since."""
        if self._newest.tls is not self._credentials.newest:
            previous, tls = self._newest, self._credentials.newest
            self._newest = _OpenChannel(tls, self._open_with(tls))
            if previous.call_count:
                self._old.add(previous)
            else:
                self._credentials.retire(previous.channel)
        return self._newest

    def _wrap(self, make: Callable[[grpc.aio.Channel], Call]) -> Call:
        made_with: ClientTls | None = None
        calling: Any = None

        def call_newest(*arguments: Any, **options: Any) -> Any:
            nonlocal made_with, calling
            opened = self._open_newest()
            if opened.tls is not made_with:
                made_with, calling = opened.tls, make(opened.channel)
            call = calling(*arguments, **options)
            opened.call_count += 1
            call.add_done_callback(lambda _: self._on_call_done(opened))
            return call

        # The cast: gRPC's multi-callables are abstract classes, and a function that is called like one does as well.
        return cast("Call", call_newest)

    def _on_call_done(self, opened: _OpenChannel) -> None:
        opened.call_count -= 1
        if not opened.call_count and opened in self._old:
            self._old.remove(opened)
            self._credentials.retire(opened.channel)
