"""How a serialized message is written to a stream, so that the stream's own status stays.

Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def message_writer(call: grpc.aio.StreamStreamCall[bytes, Any]) -> Callable[[bytes], Awaitable[None]]:
    """Return the function that writes a message to a call, once `wait_for_connection` has returned.

    Not `call.write`: after the peer has ended the call, that sets INTERNAL in place of the peer's status, and drops the
    answers that are in flight. This one raises `grpc.aio.InternalError` or `asyncio.InvalidStateError` then; the reader of
    the answers gets the status.
    """
    write: Callable[[bytes], Awaitable[None]] = call._cython_call.send_serialized_message  # type: ignore[attr-defined]
    return write
