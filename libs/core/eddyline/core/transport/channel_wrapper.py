"""Base of channels that pass calls on to another channel, and change them on the way.

A wrapper says which channel is used now, and what it makes of a method of it. Rejected: gRPC's client interceptors, which
make a task of every call.
Threading: event loop.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

Call = TypeVar("Call")


class ChannelWrapper(grpc.aio.Channel):
    """A channel over another one. Closing it closes the other."""

    @abstractmethod
    def _current(self) -> grpc.aio.Channel:
        """Return the channel to use now."""

    @abstractmethod
    def _wrap(self, make: Callable[[grpc.aio.Channel], Call]) -> Call:
        """Return a multi-callable in place of the one that `make` gives for a channel."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> bool | None:
        await self.close()
        return None

    async def close(self, grace: float | None = None) -> None:
        await self._current().close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._current().channel_ready()

    def unary_unary(self, *arguments: Any, **options: Any) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
        return self._wrap(lambda channel: channel.unary_unary(*arguments, **options))

    def unary_stream(self, *arguments: Any, **options: Any) -> grpc.aio.UnaryStreamMultiCallable[Any, Any]:
        return self._wrap(lambda channel: channel.unary_stream(*arguments, **options))

    def stream_unary(self, *arguments: Any, **options: Any) -> grpc.aio.StreamUnaryMultiCallable[Any, Any]:
        return self._wrap(lambda channel: channel.stream_unary(*arguments, **options))

    def stream_stream(self, *arguments: Any, **options: Any) -> grpc.aio.StreamStreamMultiCallable[Any, Any]:
        return self._wrap(lambda channel: channel.stream_stream(*arguments, **options))
