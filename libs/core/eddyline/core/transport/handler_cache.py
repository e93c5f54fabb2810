"""Handlers wrapped once a method, not once a call: what an interceptor makes of them.

Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Handler = TypeVar("Handler")


class HandlerCache(Generic[Handler]):
    """By method; bounded by what the server serves, since only what has a handler is asked for."""

    def __init__(self, wrap: Callable[[Handler, str], Handler]) -> None:
        self._wrap = wrap
        self._known: dict[str, tuple[Handler, Handler]] = {}

    def get(self, handler: Handler, method: str) -> Handler:
        """`handler` wrapped; anew where the method has another one than before."""
        known = self._known.get(method)
        if known is None or known[0] is not handler:
            known = self._known[method] = handler, self._wrap(handler, method)
        return known[1]
