"""A caller's access to roles: TLS, and the caller's key in the metadata of every call; a role also sends its principal.

Rejected: gRPC's call credentials, which run on a thread of their own a call and refuse connections without TLS; and client
interceptors, which make a task of every call.
I1: no text that we make has a secret. A connection without TLS sends it in the clear: that is for loopback, and for networks
that are encrypted below.
Threading: event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import grpc

from eddyline.core.auth.grant import principal_metadata
from eddyline.core.transport.channel import open_channel
from eddyline.core.transport.channel_wrapper import ChannelWrapper
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
    """A secret that may be replaced while it is used; empty = none."""

    def __init__(self, secret: str = "") -> None:
        self.replace(secret)

    def __repr__(self) -> str:
        return f"CallerKey({'***' if self._metadata else ''})"

    def replace(self, secret: str) -> None:
        """Use `secret` for all calls from now on."""
        self._metadata: Metadata = (("authorization", f"Bearer {secret}"),) if secret else ()

    def metadata(self) -> Metadata:
        """Return what goes with each call."""
        return self._metadata


class FileReloader(Protocol):
    """Keeps a caller's key and certificates as their files are."""

    def running(self, clock: Clock) -> AbstractAsyncContextManager[None]:
        """Reload changed files until left."""


@dataclass(frozen=True, slots=True)
class CallerAccess:
    """Key and certificates of a caller.

    `is_role` = the caller is a role, and sends with each call the principal for whom it makes it. `renewed` takes
    precedence over `tls`: open channels use its newest credentials. A key or certificate can be replaced later only if
    there is one when the channel is opened. `files` = reloads a client's key and certificates while it is connected; a
    role has `RoleAccess` for that.
    """

    key: CallerKey = field(default_factory=CallerKey)
    tls: ClientTls | None = None
    is_role: bool = False
    renewed: CurrentTls | None = None
    files: FileReloader | None = None

    def open_channel(self, address: str, *, own_connection: bool = False) -> grpc.aio.Channel:
        """Open a channel to a role; see `eddyline.core.transport.channel.open_channel`. The caller closes it."""

        def open_with(tls: ClientTls | None) -> grpc.aio.Channel:
            credentials = tls.credentials() if tls is not None else None
            return open_channel(address, own_connection=own_connection, credentials=credentials)

        channel = ReloadingChannel(self.renewed, open_with) if self.renewed is not None else open_with(self.tls)
        return CallerChannel(channel, self._metadata) if self.is_role or self.key.metadata() else channel

    def _metadata(self) -> Metadata:
        return (*self.key.metadata(), *principal_metadata()) if self.is_role else self.key.metadata()


class CallerChannel(ChannelWrapper):
    """A channel that adds to each call what `metadata` returns at that moment."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Callable[[], Metadata]) -> None:
        self._channel = channel
        self._metadata = metadata

    def _current(self) -> grpc.aio.Channel:
        return self._channel

    def _wrap(self, make: Callable[[grpc.aio.Channel], Call]) -> Call:
        own, calling = self._metadata, cast("Any", make(self._channel))

        def with_metadata(*arguments: Any, metadata: Metadata | None = None, **options: Any) -> Any:
            # Made here: gRPC checks first whether a tuple is a `typing.Sequence`, which costs a microsecond a call.
            return calling(*arguments, metadata=grpc.aio.Metadata(*(metadata or ()), *own()), **options)

        # The cast: gRPC's multi-callables are abstract classes, and a function that is called like one does as well.
        return cast("Call", with_metadata)
