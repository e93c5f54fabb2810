"""What a caller may do: scopes, name prefixes and quotas, as values; and the caller of the call that is being served.

A prefix covers names of topics, sources and buckets alike; no prefixes = all names. `role` is for the cluster's own
roles: it covers every call, and alone allows to speak for somebody else.
The caller is a context variable of the call's task, set by `eddyline.core.auth.interceptor` before the handler runs; outside
of a call, and where nobody need say who he is, it is NOBODY, who may do everything.
A caller is carried to the next role as the metadata `x-eddyline-principal`: JSON of name, scopes and prefixes, so that
the other role needs no key of it.
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
"""gRPC's default bound for all metadata of a call is 8 KiB; a key's bounds (`access_keys.py`) keep it below this."""


class Scope(Enum):
    """What a key is for. None of them implies another, but ROLE all."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    ADMIN = "admin"
    ROLE = "role"


@dataclass(frozen=True, slots=True)
class Grant:
    """What one key or certificate may do. `prefixes` empty = all names; a quota None = the role's own, 0 = none."""

    name: str
    scopes: frozenset[Scope]
    prefixes: tuple[str, ...] = ()
    requests_max: int | None = None
    watches_max: int | None = None
    via: str = ""
    """The role that speaks for it; empty = it came itself."""
    is_role: bool = field(init=False, repr=False, compare=False)
    """True = one of the cluster's own roles. Of `scopes`, looked up once: every call asks."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_role", Scope.ROLE in self.scopes)

    def covers(self, name: str) -> bool:
        """True = a prefix covers the name."""
        return not self.prefixes or name.startswith(self.prefixes)

    def check(self, *names: str) -> None:
        """Refuse names that no prefix covers.

        Raises:
            PermissionDenied.
        """
        for name in names:
            if not self.covers(name):
                raise PermissionDenied(
                    f"{self.name} may not touch {name[:300]!r}: none of its prefixes covers it",
                    principal=self.name,
                    name=name[:300],
                )

    def narrowed(self, prefix: str) -> tuple[str, ...]:
        """Which names that begin with `prefix` it may see: prefixes in byte order, none of which covers another."""
        found = {own if own.startswith(prefix) else prefix for own in self.prefixes or ("",) if _meet(own, prefix)}
        return tuple(one for one in sorted(found) if not any(one != other and one.startswith(other) for other in found))


ANONYMOUS: Final = Grant("", frozenset(Scope))
"""Who calls where nobody need say who he is."""

_CALLER: Final[ContextVar[Grant]] = ContextVar("_CALLER", default=ANONYMOUS)


def caller() -> Grant:
    """Who is being served."""
    return _CALLER.get()


def set_caller(grant: Grant) -> None:
    """Say who is being served, until the end of this task."""
    _CALLER.set(grant)


@contextmanager
def on_own_behalf() -> Iterator[None]:
    """Calls made inside are the role's own, whoever is being served."""
    token = _CALLER.set(ANONYMOUS)
    try:
        yield
    finally:
        _CALLER.reset(token)


def principal_metadata() -> tuple[tuple[str, str], ...]:
    """What says to the next role whom this one speaks for; empty = for itself."""
    grant = _CALLER.get()
    if grant is ANONYMOUS or grant.is_role:
        return ()
    scopes = sorted(scope.value for scope in grant.scopes)
    value = {"name": grant.name, "scopes": scopes, "prefixes": grant.prefixes}
    return ((PRINCIPAL_KEY, json.dumps(value, separators=(",", ":"))),)


def principal_from(text: str, *, via: str) -> Grant:
    """Whom a role speaks for.

    Raises:
        PermissionDenied: it is not one of ours.
    """
    try:
        value = json.loads(text if len(text) <= PRINCIPAL_BYTES_MAX else "")
        name, scopes, prefixes = value["name"], value["scopes"], value["prefixes"]
        if not (isinstance(name, str) and _texts(scopes) and _texts(prefixes) and name):
            raise TypeError
        grant = Grant(name, frozenset(Scope(scope) for scope in scopes), tuple(prefixes), via=via)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise PermissionDenied(f"{PRINCIPAL_KEY} is not as roles write it", principal=via) from None
    if grant.is_role:
        raise PermissionDenied("a role speaks for callers, not for other roles", principal=via)
    return grant


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _meet(own: str, prefix: str) -> bool:
    return own.startswith(prefix) or prefix.startswith(own)


def scope_words(scopes: Iterable[Scope]) -> str:
    """Scopes for people."""
    return ",".join(sorted(scope.value for scope in scopes))
