"""The context of a call as grpc.aio gives it to handlers, and what hot methods use besides.

As in grpc.aio: `abort` raises `AbortError`, also again from every later operation, so that a handler cannot swallow it;
operations after the status raise `UsageError`; a send to a client that has gone raises `InternalError`; a read then gives
EOF. Compression is not supported: what asks for it does nothing.
"""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from eddyline.wire.calls.metadata import encode_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from eddyline.wire.calls.call import Call
    from eddyline.wire.calls.metadata import Metadatum

    Pair = tuple[str, str | bytes]

FINISHED: str = "RPC already finished."


class WireContext:
    """WireContext of one call. `call` has the ways past coroutines: `send`, `writable`, `receive`, `send_to_all`."""

    __slots__ = ("_abort", "_code", "_details", "_trailing", "call", "decode", "encode")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.decode: Callable[[bytes], Any] | None = None
        """Makes a request of bytes; None = as it is. Set by the server, as is `encode`."""
        self.encode: Callable[[Any], bytes] | None = None
        self._abort: grpc.aio.AbortError | None = None
        self._code: grpc.StatusCode | int | None = None
        self._details = ""
        self._trailing: tuple[Pair, ...] = ()

    # -- the request

    def invocation_metadata(self) -> tuple[Metadatum, ...]:
        """Return the request's metadata."""
        return self.call.opening.metadata

    def peer(self) -> str:
        """Return the client's address: `ipv4:…`, `ipv6:…` or `unix:…`."""
        return self.call.connection.peer

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the properties of the client's certificate."""
        return self.call.connection.auth_context()

    def peer_identity_key(self) -> str | None:
        """Return the property that names the client; None = it has shown no certificate."""
        properties = self.auth_context()
        keys = ("x509_subject_alternative_name", "x509_common_name")
        return next((key for key in keys if key in properties), None)

    def peer_identities(self) -> Iterable[bytes] | None:
        """Return the names of the client; None = it has shown no certificate."""
        key = self.peer_identity_key()
        return self.auth_context()[key] if key is not None else None

    def time_remaining(self) -> float | None:
        """Return the seconds to the deadline, 0 after it; None = there is none."""
        deadline_s = self.call.deadline_s
        return None if deadline_s is None else max(deadline_s - self.call.now(), 0.0)

    async def read(self) -> object:
        """Return the next request; `grpc.aio.EOF` = there is none.

        Raises:
            grpc.aio.UsageError: the status is sent.
        """
        self.check_open()
        message = await self.call.read()
        self.check_open()
        if message is None:
            return grpc.aio.EOF
        return self.decode(message) if self.decode is not None else message

    def requests(self) -> RequestStream:
        """Return the requests of a stream."""
        return RequestStream(self)

    # -- the response

    async def send_initial_metadata(self, metadata: Iterable[Pair]) -> None:
        """Send the response's metadata.

        Raises:
            grpc.aio.UsageError: it was sent before, or the status.
        """
        self._check_sendable()
        if self.call.stream.is_opened:
            raise grpc.aio.UsageError("Send initial metadata failed: already sent")
        self.call.open(tuple(metadata))

    async def write(self, message: object) -> None:
        """Send a message; waits while the client takes none.

        Raises:
            grpc.aio.UsageError: the status is sent.
            grpc.aio.InternalError: the client has gone.
        """
        self._check_sendable()
        encoded = self.encode(message) if self.encode is not None else message
        if not isinstance(encoded, bytes):
            raise TypeError("a message that is not serialized to bytes")
        call = self.call
        if not call.send(encoded):
            await call.writable()
            self._check_sendable()
        elif call.stream.connection.is_full:
            await call.next_turn()

    def write_now(self, message: object) -> bool:
        """Send a message as `write` does, but without waiting. False: await `drained` before the next one.

        Raises:
            as `write`.
        """
        self._check_sendable()
        encoded = self.encode(message) if self.encode is not None else message
        if not isinstance(encoded, bytes):
            raise TypeError("a message that is not serialized to bytes")
        return self.call.send(encoded)

    async def drained(self) -> None:
        """Wait until the client has taken half of what waits for it, or the call is over."""
        await self.call.writable()

    def set_trailing_metadata(self, metadata: Iterable[Pair]) -> None:
        """Set the metadata that is sent with the status."""
        self._trailing = tuple(metadata)

    def trailing_metadata(self) -> tuple[Pair, ...]:
        """Return the metadata that is sent with the status."""
        return self._trailing

    def set_code(self, code: grpc.StatusCode | int) -> None:
        """Set the code of the status."""
        self._code = code

    def code(self) -> grpc.StatusCode | int | None:
        """Return the code that was set; None = none was, and the status will be OK."""
        return self._code

    def set_details(self, details: str) -> None:
        """Set the message of the status."""
        self._details = details

    def details(self) -> str:
        """Return the message that was set."""
        return self._details

    async def abort(
        self, code: grpc.StatusCode | int, details: str = "", trailing_metadata: Sequence[Pair] = ()
    ) -> NoReturn:
        """End the call with a status.

        Raises:
            grpc.aio.AbortError: always, unless the call was aborted before.
            grpc.aio.UsageError: it was.
        """
        if self._abort is not None:
            raise grpc.aio.UsageError("Abort already called!")
        encode_metadata(trailing_metadata)
        self._code = code
        self._details = details or self._details
        self._trailing = tuple(trailing_metadata) or self._trailing
        self._abort = grpc.aio.AbortError("Locally aborted.")
        self.call.finish(code_number(code), self._details, self._trailing)
        raise self._abort

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """End the call with a status, as `abort` does."""
        await self.abort(status.code, status.details, tuple(status.trailing_metadata or ()))

    # -- the call

    def add_done_callback(self, callback: Callable[[WireContext], None]) -> None:
        """Call `callback` with this context when the call is over: its status is sent, or it is cancelled."""
        self.call.done_callbacks.append(partial(callback, self))

    def done(self) -> bool:
        """Return True once the call is over: its status is sent, or it is cancelled."""
        return self.call.is_finished or self.call.is_cancelled

    def cancelled(self) -> bool:
        """Return True if the client or its deadline has ended the call, or the connection is lost."""
        return self.call.is_cancelled

    def set_compression(self, _compression: grpc.Compression) -> None:
        """Do nothing: messages are sent as they are."""

    def disable_next_message_compression(self) -> None:
        """Do nothing."""

    # -- for the server

    def check_open(self) -> None:
        """Raise what an operation of a call that is over raises; nothing for a call that its client has cancelled."""
        if self._abort is not None:
            raise self._abort
        if self.call.is_finished:
            raise grpc.aio.UsageError(FINISHED)

    def finish(self, message: bytes | None = None) -> None:
        """End the call with the status that was set, OK if none was. `message` is sent before a status OK."""
        number = code_number(self._code) if self._code is not None else 0
        if number == 0 and message is not None:
            if not self._details and not self._trailing:
                self.call.answer(message)
                return
            self.call.send(message)
        self.call.finish(number, self._details, self._trailing)

    def fail(self, code: int, details: str) -> None:
        """End the call for an unexpected error; a code that the handler has set is kept."""
        if self._code is not None and code_number(self._code):
            code = code_number(self._code)
        try:
            self.call.finish(code, details, self._trailing)
        except ValueError:
            self.call.finish(code, details)

    def _check_sendable(self) -> None:
        self.check_open()
        if self.call.stream.is_closed:
            raise grpc.aio.InternalError("the client has ended the call")


class RequestStream:
    """The requests of a stream: an asynchronous iterator, or given to a function as they come (`receive`), not both."""

    __slots__ = ("_context",)

    def __init__(self, context: WireContext) -> None:
        self._context = context

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> object:
        request = await self._context.read()
        if request is grpc.aio.EOF:
            raise StopAsyncIteration
        return request

    def receive(self, on_message: Callable[[bytes], bool], on_end: Callable[[], None]) -> None:
        """Give the bytes of each message to `on_message`, as `Call.receive` does, in the caller's context variables."""
        run = copy_context().run
        self._context.call.receive(lambda message: run(on_message, message), on_end)

    def decode(self, message: bytes) -> object:
        """Return a message that `receive` gave as the handler's request."""
        decode = self._context.decode
        return decode(message) if decode is not None else message

    def resume(self) -> None:
        """Go on after `on_message` has returned False. Not for `on_message` itself."""
        self._context.call.resume()


def code_number(code: grpc.StatusCode | int) -> int:
    """Return the number of a status code."""
    return code if isinstance(code, int) else int(code.value[0])
