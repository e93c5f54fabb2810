"""Synchronous channels to roles, and what their failures mean: the one place of Spark's that dials.

A key goes into each call's metadata, by an interceptor, which costs a call nothing here; see
`eddyline.core.auth.caller_channel` for why the channels of a loop do without.
I1: a secret is in no text that we make. A refusal for want of a key names the option that gives it.
Threading: a channel is used in the process that opened it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc

from eddyline.core.auth.caller_channel import CallerAccess
from eddyline.core.errors import Code, Unauthenticated
from eddyline.core.transport.channel import CHANNEL_OPTIONS
from eddyline.core.transport.status import unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eddyline.core.auth.caller_channel import CallerKey
    from eddyline.core.errors import EddylineError

    Metadata = tuple[tuple[str, str | bytes], ...]

NO_ACCESS: Final = CallerAccess()
"""No key, no TLS: for clusters that listen on loopback."""
REFUSED: Final = (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED)
"""Every role would refuse the same caller again."""


def open_channel(address: str, access: CallerAccess) -> grpc.Channel:
    """A channel to a role. Dials at the first call. The caller closes it."""
    options = list(CHANNEL_OPTIONS)
    if access.tls is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        channel = grpc.secure_channel(address, access.tls.credentials(), options=options)
    return grpc.intercept_channel(channel, _WithKey(access.key)) if access.key.metadata() else channel


def domain_error(error: grpc.RpcError) -> EddylineError:
    """The error class for a role's status. A synchronous call's error has what one of a loop has, in other classes."""
    assert isinstance(error, grpc.Call)
    trailing = grpc.aio.Metadata(*((key, value) for key, value in error.trailing_metadata() or ()))
    found = unwrap(grpc.aio.AioRpcError(error.code(), grpc.aio.Metadata(), trailing, details=error.details()))
    if isinstance(found, Unauthenticated):
        return Unauthenticated(f"{found.message} (option keyFile, or key)", **found.metadata)
    return found


def how_dialled(access: CallerAccess) -> str:
    """For messages about roles that do not answer: a role that uses TLS lets go of who does not, and says nothing."""
    if access.tls is None:
        return "without TLS: options tls, tlsCa"
    own = "with" if access.tls.certificate is not None else "without"
    return f"with TLS, {own} a client certificate: options tlsCa, tlsCert, tlsKey"


class _Details(NamedTuple):
    """One call, as interceptors pass it on."""

    method: str
    timeout: float | None
    metadata: Metadata
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class _WithKey(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Calls carry the key."""

    def __init__(self, key: CallerKey) -> None:
        self._key = key

    def intercept_unary_unary(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        return continuation(self._keyed(client_call_details), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], client_call_details: Any, request: Any) -> Any:
        return continuation(self._keyed(client_call_details), request)

    def intercept_stream_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Iterator[Any]
    ) -> Any:
        return continuation(self._keyed(client_call_details), request_iterator)

    def _keyed(self, call: Any) -> _Details:
        metadata = (*(call.metadata or ()), *self._key.metadata())
        return _Details(call.method, call.timeout, metadata, call.credentials, call.wait_for_ready, call.compression)
