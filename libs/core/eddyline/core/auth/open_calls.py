"""Open streams, and how a stream ends whose key was removed.

A stream is ended by cancelling the task that serves it, as every call that ends early, and then by raising the error that
says why. The first message of a stream carries its metadata, and cutting it off would make gRPC send the metadata twice:
a stream that is sending it ends right after it.
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
    """One stream: its grant, the digest or certificate it came with, and its names (kept only for keys with prefixes)."""

    __slots__ = (
        "_is_sending_first",
        "_task",
        "begun",
        "certificate",
        "digest",
        "grant",
        "method",
        "names",
        "rule",
        "why",
    )

    def __init__(self, grant: Grant, rule: Rule, method: str, *, digest: bytes = b"", certificate: str = "") -> None:
        self.grant = grant
        self.digest = digest
        self.certificate = certificate
        self.rule = rule
        self.method = method
        self.names: tuple[str, ...] = ()
        self.begun = False
        self.why: EddylineError | None = None
        self._is_sending_first = False
        self._task = asyncio.current_task()

    @property
    def name(self) -> str:
        """Return the name of the key or certificate that the connection's peer used."""
        return self.grant.via or self.grant.name

    async def begin(self, writing: Awaitable[None]) -> None:
        """Send the first message, without being cancelled in it."""
        self._is_sending_first = True
        await writing
        self._is_sending_first, self.begun = False, True
        if self.why is not None:
            raise self.why

    def end(self, why: EddylineError) -> None:
        """End the stream with `why`; only the first call has an effect."""
        if self.why is None and self._task is not None:
            self.why = why
            if not self._is_sending_first:
                self._task.cancel()


class OpenCalls:
    """All open streams of a server."""

    def __init__(self) -> None:
        self.open: dict[OpenCall, None] = {}

    async def serve(self, call: OpenCall, serving: Coroutine[object, object, None]) -> None:
        """Run `serving`, which serves the stream `call`, to its end.

        Raises:
            the error with which the stream was ended, or the errors of `serving`.
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

    def end_uncovered(self, current: Callable[[OpenCall], Grant | None]) -> int:
        """End the streams that their key no longer covers; return how many. `current` = the grant of a stream's key now."""
        ended = 0
        for call in list(self.open):
            grant = current(call)
            reason = _end_reason(call, grant)
            if reason is not None:
                call.end(reason)
                ended += 1
            elif grant is not None and not call.grant.via:
                call.grant = grant
        return ended


def _end_reason(call: OpenCall, grant: Grant | None) -> EddylineError | None:
    name = call.name
    if grant is None or grant.name != name:
        return Unauthenticated("the key was revoked", principal=name)
    if call.grant.via:
        return None if grant.is_role else PermissionDenied(f"{name} is no longer a role", principal=name)
    if grant.is_role or grant == call.grant:
        return None
    loses = call.rule.scopes.isdisjoint(grant.scopes)
    # The names on a stream are not recorded for a key without prefixes.
    unknown = bool(grant.prefixes) and not call.grant.prefixes
    if loses or unknown or not all(grant.covers(covered) for covered in call.names):
        return PermissionDenied(f"the key of {name} no longer covers this stream", principal=name, method=call.method)
    return None
