"""A channel of a role or a client whose certificate and authorities are renewed while it is open.

gRPC's credentials are for the life of a channel. So a call goes by a channel that was opened with what is held now: the
first call after a renewal opens it, and so a connection. Calls under way stay where they are: TLS looks at certificates when
a connection is made, and never again. Where such a connection ends its calls do, and whoever makes them anew goes by what is
new. A channel that is not the newest is closed once its last call has ended, when `CurrentTls.close_idle` comes by.
I1: no call begins with what was replaced. I2: at each `close_idle` no more channels are left than calls under way, and one.
Rejected: closing them after a time, which ends streams as if their caller had; gRPC's own watching of files, which Python
has not.
Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.tls.files import ClientTls

Call = TypeVar("Call")


class CurrentTls:
    """What a client goes by, which may be replaced while it is used: by whoever then calls `close_idle` now and again."""

    def __init__(self, tls: ClientTls) -> None:
        self.newest = tls
        self._idle: list[grpc.aio.Channel] = []

    @property
    def idle_count(self) -> int:
        """Channels that wait to be closed."""
        return len(self._idle)

    def retire(self, channel: grpc.aio.Channel) -> None:
        """Take a channel that is not the newest, and has no calls."""
        self._idle.append(channel)

    async def close_idle(self) -> None:
        """Close what was retired."""
        while self._idle:
            await self._idle.pop().close()


class _Opened:
    """A channel, what it was opened with, and how many calls go by it."""

    __slots__ = ("call_count", "channel", "tls")

    def __init__(self, tls: ClientTls, channel: grpc.aio.Channel) -> None:
        self.tls = tls
        self.channel = channel
        self.call_count = 0


class ReloadingChannel(grpc.aio.Channel):
    """See the module. `open_with` opens a channel; who closes this one closes all."""

    def __init__(self, held: CurrentTls, open_with: Callable[[ClientTls], grpc.aio.Channel]) -> None:
        self._held = held
        self._open_with = open_with
        self._newest = _Opened(held.newest, open_with(held.newest))
        self._before: set[_Opened] = set()

    async def __aenter__(self) -> ReloadingChannel:
        return self

    async def __aexit__(self, *raised: object) -> bool | None:
        await self.close()
        return None

    async def close(self, grace: float | None = None) -> None:
        for opened in (self._newest, *self._before):
            await opened.channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._opened().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._opened().channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._opened().channel.channel_ready()

    def unary_unary(self, *arguments: Any, **options: Any) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
        def make(channel: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
            return channel.unary_unary(*arguments, **options)

        return self._by_newest(make)

    def unary_stream(self, *arguments: Any, **options: Any) -> grpc.aio.UnaryStreamMultiCallable[Any, Any]:
        def make(channel: grpc.aio.Channel) -> grpc.aio.UnaryStreamMultiCallable[Any, Any]:
            return channel.unary_stream(*arguments, **options)

        return self._by_newest(make)

    def stream_unary(self, *arguments: Any, **options: Any) -> grpc.aio.StreamUnaryMultiCallable[Any, Any]:
        def make(channel: grpc.aio.Channel) -> grpc.aio.StreamUnaryMultiCallable[Any, Any]:
            return channel.stream_unary(*arguments, **options)

        return self._by_newest(make)

    def stream_stream(self, *arguments: Any, **options: Any) -> grpc.aio.StreamStreamMultiCallable[Any, Any]:
        def make(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamMultiCallable[Any, Any]:
            return channel.stream_stream(*arguments, **options)

        return self._by_newest(make)

    def _opened(self) -> _Opened:
        """The newest, opened now where what is held is newer."""
        if self._newest.tls is not self._held.newest:
            before, tls = self._newest, self._held.newest
            self._newest = _Opened(tls, self._open_with(tls))
            if before.call_count:
                self._before.add(before)
            else:
                self._held.retire(before.channel)
        return self._newest

    def _by_newest(self, make: Callable[[grpc.aio.Channel], Call]) -> Call:
        made_with: ClientTls | None = None
        calling: Any = None

        def by_newest(*arguments: Any, **options: Any) -> Any:
            nonlocal made_with, calling
            opened = self._opened()
            if opened.tls is not made_with:
                made_with, calling = opened.tls, make(opened.channel)
            call = calling(*arguments, **options)
            opened.call_count += 1
            call.add_done_callback(lambda _: self._ended(opened))
            return call

        # The cast: gRPC's multi-callables are abstract classes, and what calls one is as good as one.
        return cast("Call", by_newest)

    def _ended(self, opened: _Opened) -> None:
        opened.call_count -= 1
        if not opened.call_count and opened in self._before:
            self._before.remove(opened)
            self._held.retire(opened.channel)
