"""Requests of a stream that a handler may take by a function as they come, without a coroutine a message.

`eddyline.wire` gives such requests; gRPC's own core gives iterators alone. What stands between server and handler keeps the
form that it gets, so that a handler finds one or the other.
Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

RequestT = TypeVar("RequestT")
RequestT_co = TypeVar("RequestT_co", covariant=True)


@runtime_checkable
class PushedRequests(Protocol[RequestT_co]):
    """Requests of one stream: iterated, or received, not both."""

    def __aiter__(self) -> PushedRequests[RequestT_co]:
        """Return itself."""

    async def __anext__(self) -> RequestT_co:
        """Return the next request.

        Raises:
            StopAsyncIteration; and what `decode` raises.
        """

    def receive(self, on_message: Callable[[bytes], bool], on_end: Callable[[], None]) -> None:
        """Give each message to `on_message` as it comes, and call `on_end` behind the last one.

        `on_message` returns False to pause: later messages wait at the client, until `resume`.
        """

    def decode(self, message: bytes) -> RequestT_co:
        """Return a received message as the handler's request.

        Raises:
            InvalidArgument: it is none. PermissionDenied: the caller may not send it.
        """

    def resume(self) -> None:
        """Go on after a pause. `on_message` must not call it."""


class CheckedRequests(Generic[RequestT]):
    """Requests of which each is checked when it is decoded."""

    def __init__(self, requests: PushedRequests[RequestT], check: Callable[[RequestT], None]) -> None:
        self._requests = requests
        self._check = check

    def __aiter__(self) -> CheckedRequests[RequestT]:
        return self

    async def __anext__(self) -> RequestT:
        request = await anext(self._requests)
        self._check(request)
        return request

    def receive(self, on_message: Callable[[bytes], bool], on_end: Callable[[], None]) -> None:
        self._requests.receive(on_message, on_end)

    def decode(self, message: bytes) -> RequestT:
        request = self._requests.decode(message)
        self._check(request)
        return request

    def resume(self) -> None:
        self._requests.resume()


class RejoinedRequests(Generic[RequestT]):
    """Requests whose first one was taken already: `first`, decoded from `message`."""

    def __init__(self, first: RequestT, message: bytes, requests: PushedRequests[RequestT]) -> None:
        self._first: list[RequestT] = [first]
        self._message = message
        self._requests = requests
        self._waiting: tuple[Callable[[bytes], bool], Callable[[], None]] | None = None
        """Functions that get what is behind the first request, which has made a pause."""

    def __aiter__(self) -> RejoinedRequests[RequestT]:
        return self

    async def __anext__(self) -> RequestT:
        return self._first.pop() if self._first else await anext(self._requests)

    def receive(self, on_message: Callable[[bytes], bool], on_end: Callable[[], None]) -> None:
        if on_message(self._message):
            self._requests.receive(on_message, on_end)
        else:
            self._waiting = on_message, on_end

    def decode(self, message: bytes) -> RequestT:
        return self._requests.decode(message)

    def resume(self) -> None:
        if self._waiting is None:
            self._requests.resume()
        else:
            waiting, self._waiting = self._waiting, None
            self._requests.receive(*waiting)


def as_pushed(requests: Any) -> PushedRequests[Any] | None:
    """Return requests that can be received; None = they can only be iterated."""
    return requests if isinstance(requests, PushedRequests) else None
