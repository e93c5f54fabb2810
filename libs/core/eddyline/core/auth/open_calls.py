"""Open streams, and how one ends whose key was taken away.

A stream ends by cancelling what serves it, which is how every call ends early, and then by the error that says why. A
stream's first message carries its metadata, and is not cut off (gRPC would send the metadata twice): such a stream ends
right behind it.
I1: a stream is ended at most once, and only while its handler runs.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from eddyline.core.errors import EddylineError, PermissionDenied, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from eddyline.core.auth.grant import Grant
    from eddyline.core.auth.rules import Rule


class OpenCall:
    """One stream: whose, by which digest or certificate, and the names in it (kept for keys with prefixes alone)."""

    __slots__ = ("_held", "_task", "begun", "certificate", "digest", "grant", "method", "names", "rule", "why")

    def __init__(self, grant: Grant, rule: Rule, method: str, *, digest: bytes = b"", certificate: str = "") -> None:
        self.grant = grant
        self.digest = digest
        self.certificate = certificate
        self.rule = rule
        self.method = method
        self.names: tuple[str, ...] = ()
        self.begun = False
        self.why: EddylineError | None = None
        self._held = False
        self._task = asyncio.current_task()

    @property
    def name(self) -> str:
        """Whose key or certificate it is."""
        return self.grant.via or self.grant.name

    async def begin(self, writing: Awaitable[None]) -> None:
        """Send the first message, whole."""
        self._held = True
        await writing
        self._held, self.begun = False, True
        if self.why is not None:
            raise self.why

    def end(self, why: EddylineError) -> None:
        """End it."""
        if self.why is None and self._task is not None:
            self.why = why
            if not self._held:
                self._task.cancel()


class OpenCalls:
    """All open streams of a server."""

    def __init__(self) -> None:
        self.open: dict[OpenCall, None] = {}

    async def serve(self, call: OpenCall, serving: Coroutine[object, object, None]) -> None:
        """Serve a stream to its end.

        Raises:
            What serving it raises, or why it was ended.
        """
        self.open[call] = None
        try:
            await serving
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if call.why is None or task is None or task.uncancel() > 0:
                raise
            raise call.why from None
        finally:
            del self.open[call]

    def end_uncovered(self, now: Callable[[OpenCall], Grant | None]) -> int:
        """End the streams whose key is gone, or covers them no more. `now` = what a stream's key is now. How many ended."""
        ended = 0
        for call in list(self.open):
            grant = now(call)
            why = _why(call, grant)
            if why is not None:
                call.end(why)
                ended += 1
            elif grant is not None and not call.grant.via:
                call.grant = grant
        return ended


def _why(call: OpenCall, grant: Grant | None) -> EddylineError | None:
    name = call.name
    if grant is None or grant.name != name:
        return Unauthenticated("the key was taken away", principal=name)
    if call.grant.via:
        return None if grant.is_role else PermissionDenied(f"{name} is no role any more", principal=name)
    if grant.is_role or grant == call.grant:
        return None
    loses = call.rule.scopes.isdisjoint(grant.scopes)
    # Which names an unbounded key had on a stream nobody wrote down.
    unknown = bool(grant.prefixes) and not call.grant.prefixes
    if loses or unknown or not all(grant.covers(covered) for covered in call.names):
        return PermissionDenied(f"the key of {name} covers this stream no more", principal=name, method=call.method)
    return None
