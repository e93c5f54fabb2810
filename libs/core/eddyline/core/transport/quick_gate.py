"""What an interceptor has besides, to admit calls that are answered at once, without passing interceptors.

`eddyline.core.server.quick_calls` asks it. A gate that does not admit a call leaves it to the interceptors, which refuse it
with their reasons. Threading: event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
Certificate: TypeAlias = Callable[[], Mapping[str, Iterable[bytes]]]
"""Returns the properties of the certificate that the caller opened its connection with."""
GiveBack: TypeAlias = Callable[[], None]
"""Called once, when the call is over."""
Admit: TypeAlias = Callable[[Any, int], GiveBack | None]
"""Admits a parsed request of so many bytes. None, or a domain error, leaves the call to the interceptors."""


@runtime_checkable
class QuickGate(Protocol):
    """An interceptor that can admit calls of quick methods itself."""

    def quick_admit(self, method: str, metadata: Metadata, certificate: Certificate) -> Admit | None:
        """Return what admits the requests of calls that open so; None = each of them needs the interceptor.

        `certificate` returns the properties of the caller's certificate. Raises a domain error for a caller it refuses.
        """


def nothing() -> None:
    """Give nothing back."""


def admit_any(_request: object, _size: int) -> GiveBack:
    """Admit every request."""
    return nothing
