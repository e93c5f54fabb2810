"""Permissions of a caller, as values: scopes, name prefixes and quotas; and the caller of the current call.

A prefix covers names of topics, sources and buckets alike; no prefixes = all names. Scope `role` is for the cluster's own
roles: it covers every call, and only it may call for another principal. The caller is a context variable of the call's
task. `eddyline.core.auth.interceptor` sets it before the handler runs. Outside of a call, and without access control, it
is ANONYMOUS, which may do everything. A role sends its caller to the next role as the metadata `x-eddyline-principal`:
JSON of name, scopes and prefixes, so that the next role needs no key of that caller.
Threading: event loop.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import PermissionDenied

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PRINCIPAL_KEY: Final = "x-eddyline-principal"
PRINCIPAL_BYTES_MAX: Final = 6 << 10
"""gRPC's default bound for all metadata of a call is 8 KiB; the bounds of a key (`keys_file.py`) keep it below this."""


class Scope(Enum):
    """A permission of a key. None implies another, except that ROLE implies all."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    ADMIN = "admin"
    ROLE = "role"


@dataclass(frozen=True, slots=True)
class Grant:
    """Permissions of one key or certificate. `prefixes` empty = all names; a quota None = the role's default, 0 = none."""

    name: str
    scopes: frozenset[Scope]
    prefixes: tuple[str, ...] = ()
    requests_max: int | None = None
    watches_max: int | None = None
    via: str = ""
    """The role that calls for this principal; empty = the principal calls directly."""
    is_role: bool = field(init=False, repr=False, compare=False)
    """True = one of the cluster's own roles. Derived from `scopes` once, since every call needs it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_role", Scope.ROLE in self.scopes)

    def covers(self, name: str) -> bool:
        """Return True if a prefix covers the name."""
        return not self.prefixes or name.startswith(self.prefixes)

    def check(self, *names: str) -> None:
        """Refuse names that no prefix covers.

        Raises:
            PermissionDenied.
        """
        for name in names:
            if not self.covers(name):
                raise PermissionDenied(
                    f"{self.name} may not access {name[:300]!r}: none of its prefixes covers it",
                    principal=self.name,
                    name=name[:300],
                )

    def narrowed(self, prefix: str) -> tuple[str, ...]:
        """Return prefixes of the names below `prefix` that it may see: in byte order, none of which covers another."""
        prefixes = {own if own.startswith(prefix) else prefix for own in self.prefixes or ("",) if _meet(own, prefix)}
        return tuple(
            one for one in sorted(prefixes) if not any(one != other and one.startswith(other) for other in prefixes)
        )


ANONYMOUS: Final = Grant("", frozenset(Scope))
"""The caller where there is no access control."""

_CALLER: Final[ContextVar[Grant]] = ContextVar("_CALLER", default=ANONYMOUS)


def caller() -> Grant:
    """Return the caller of the current call."""
    return _CALLER.get()


def set_caller(grant: Grant) -> None:
    """Set the caller until the end of this task."""
    _CALLER.set(grant)


@contextmanager
def on_own_behalf() -> Iterator[None]:
    """Make the calls in the block as the role itself rather than for the current caller."""
    token = _CALLER.set(ANONYMOUS)
    try:
        yield
    finally:
        _CALLER.reset(token)


def principal_metadata() -> tuple[tuple[str, str], ...]:
    """Return metadata that names the current caller to the next role; empty = the role calls for itself."""
    grant = _CALLER.get()
    if grant is ANONYMOUS or grant.is_role:
        return ()
    scopes = sorted(scope.value for scope in grant.scopes)
    value = {"name": grant.name, "scopes": scopes, "prefixes": grant.prefixes}
    return ((PRINCIPAL_KEY, json.dumps(value, separators=(",", ":"))),)


def principal_from(text: str, *, via: str) -> Grant:
    """Parse the principal that the role `via` calls for.

    Raises:
        PermissionDenied: the text is malformed, or names a role.
    """
    try:
        value = json.loads(text if len(text) <= PRINCIPAL_BYTES_MAX else "")
        name, scopes, prefixes = value["name"], value["scopes"], value["prefixes"]
        if not (isinstance(name, str) and _texts(scopes) and _texts(prefixes) and name):
            raise TypeError
        grant = Grant(name, frozenset(Scope(scope) for scope in scopes), tuple(prefixes), via=via)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise PermissionDenied(f"the metadata {PRINCIPAL_KEY} is malformed", principal=via) from None
    if grant.is_role:
        raise PermissionDenied("a role may call for a caller, not for another role", principal=via)
    return grant


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _meet(own: str, prefix: str) -> bool:
    return own.startswith(prefix) or prefix.startswith(own)


def scope_words(scopes: Iterable[Scope]) -> str:
    """Return scope names, sorted, with commas between them."""
    return ",".join(sorted(scope.value for scope in scopes))
