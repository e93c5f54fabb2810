"""How a client or a role gets in at roles: TLS, and its key with every call; of a role also whom it speaks for.

The key goes into each call's metadata. Rejected: gRPC's call credentials, which run on a thread of their own a call and
refuse connections without TLS; and client interceptors, which make a task of every call.
I1: a secret is in no text that we make. Over a connection without TLS it is sent as it is: that is for loopback, and for
networks that encrypt by themselves.
Threading: event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import grpc

from eddyline.core.auth.grant import principal_metadata
from eddyline.core.transport.channel import open_channel
from eddyline.core.transport.renewed_channel import ReloadingChannel

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from eddyline.core.runtime.clock import Clock
    from eddyline.core.tls.files import ClientTls
    from eddyline.core.transport.renewed_channel import CurrentTls

    Metadata = tuple[tuple[str, str], ...]

Call = TypeVar("Call")


class CallerKey:
    """A secret that may be replaced while it is used. Empty = none."""

    def __init__(self, secret: str = "") -> None:
        self.replace(secret)

    def __repr__(self) -> str:
        return f"HeldKey({'***' if self._metadata else ''})"

    def replace(self, secret: str) -> None:
        """Show another one from now on."""
        self._metadata: Metadata = (("authorization", f"Bearer {secret}"),) if secret else ()

    def metadata(self) -> Metadata:
        """What goes with each call."""
        return self._metadata


class FileReloader(Protocol):
    """What keeps a caller's key and certificates as their files are."""

    def running(self, clock: Clock) -> AbstractAsyncContextManager[None]:
        """Keep them until left."""


@dataclass(frozen=True, slots=True)
class CallerAccess:
    """What a caller shows. `speaks` = it is a role, and says with each call for whom it makes it. `renewed` goes before
    `tls`: open channels go by what it holds. Only what is there when a channel is opened may be replaced afterwards.
    `files` = what replaces key and certificates while it runs; of a client, since a role sees to its own."""

    key: CallerKey = field(default_factory=CallerKey)
    tls: ClientTls | None = None
    speaks: bool = False
    renewed: CurrentTls | None = None
    files: FileReloader | None = None

    def open_channel(self, address: str, *, own_connection: bool = False) -> grpc.aio.Channel:
        """A channel to a role; see `eddyline.core.transport.channel.open_channel`. The caller closes it."""

        def open_with(tls: ClientTls | None) -> grpc.aio.Channel:
            credentials = tls.credentials() if tls is not None else None
            return open_channel(address, own_connection=own_connection, credentials=credentials)

        channel = ReloadingChannel(self.renewed, open_with) if self.renewed is not None else open_with(self.tls)
        return CallerChannel(channel, self._metadata) if self.speaks or self.key.metadata() else channel

    def _metadata(self) -> Metadata:
        return (*self.key.metadata(), *principal_metadata()) if self.speaks else self.key.metadata()


class CallerChannel(grpc.aio.Channel):
    """A channel whose calls carry what `metadata` gives at that moment. All else is the wrapped one's."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Callable[[], Metadata]) -> None:
        self._channel = channel
        self._metadata = metadata

    async def __aenter__(self) -> CallerChannel:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> bool | None:
        await self._channel.close()
        return None

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    def unary_unary(self, *arguments: Any, **options: Any) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
        call: grpc.aio.UnaryUnaryMultiCallable[Any, Any] = self._channel.unary_unary(*arguments, **options)
        return self._with_metadata(call)

    def unary_stream(self, *arguments: Any, **options: Any) -> grpc.aio.UnaryStreamMultiCallable[Any, Any]:
        call: grpc.aio.UnaryStreamMultiCallable[Any, Any] = self._channel.unary_stream(*arguments, **options)
        return self._with_metadata(call)

    def stream_unary(self, *arguments: Any, **options: Any) -> grpc.aio.StreamUnaryMultiCallable[Any, Any]:
        call: grpc.aio.StreamUnaryMultiCallable[Any, Any] = self._channel.stream_unary(*arguments, **options)
        return self._with_metadata(call)

    def stream_stream(self, *arguments: Any, **options: Any) -> grpc.aio.StreamStreamMultiCallable[Any, Any]:
        call: grpc.aio.StreamStreamMultiCallable[Any, Any] = self._channel.stream_stream(*arguments, **options)
        return self._with_metadata(call)

    def _with_metadata(self, call: Call) -> Call:
        own, calling = self._metadata, cast("Any", call)

        def with_metadata(*arguments: Any, metadata: Metadata | None = None, **options: Any) -> Any:
            # Made here: of a tuple gRPC asks first whether it is a `typing.Sequence`, a microsecond a call.
            return calling(*arguments, metadata=grpc.aio.Metadata(*(metadata or ()), *own()), **options)

        # The casts: gRPC's multi-callables are abstract classes, and what calls one is as good as one.
        return cast("Call", with_metadata)
