"""What a source is doing now: its state and figures, as reported to the store, health and status.

Owns the order of states: a stop is left by what ends it and not by looking again, which would flicker. OVERSIZE ends when
the source is LIVE, BUCKET_MISSING when the bucket is being read, the others never under the same lease.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal

from eddyline.core.source import SourceReport

if TYPE_CHECKING:
    from eddyline.core.clock import Clock

State = Literal[
    "STARTING", "RESYNCING", "LIVE", "RECOVERING", "BUCKET_MISSING", "STREAM_RECREATED", "CURSOR_AHEAD", "OVERSIZE"
]
"""Names of the contract's `SourceStatus`."""

COPYING: Final[frozenset[State]] = frozenset(("RESYNCING", "LIVE"))
STOPPED: Final[frozenset[State]] = frozenset(("BUCKET_MISSING", "STREAM_RECREATED", "CURSOR_AHEAD", "OVERSIZE"))
_ENDED_BY: Final[dict[State, tuple[State, ...]]] = {"OVERSIZE": ("LIVE",), "BUCKET_MISSING": ("RESYNCING", "LIVE")}
REASON_CHARS_MAX: Final = 250
"""The contract takes 1 KiB; four bytes a character at most."""


class Progress:
    """One source's state. `changed` is set at every change of state or reason, for whoever reports it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s = clock.monotonic_s()
        self.state: State = "STARTING"
        self.reason = ""
        self.position_revision = 0
        self.last_revision = 0
        self.changed = asyncio.Event()

    @property
    def lag(self) -> int:
        """Revisions between the stream's last one, as last seen, and the position."""
        return max(self.last_revision - self.position_revision, 0)

    @property
    def since_ms(self) -> int:
        """Time in this state."""
        return round((self._clock.monotonic_s() - self._since_s) * 1000)

    def enter(self, state: State, reason: str = "") -> None:
        """Be in `state` from now on."""
        if self.state in STOPPED and state not in STOPPED and state not in _ENDED_BY.get(self.state, ()):
            return
        if state != self.state:
            self.state = state
            self._since_s = self._clock.monotonic_s()
            self.changed.set()
        self.explain(reason)

    def explain(self, reason: str) -> None:
        """Say why, without a change of state; "" = all is well."""
        if reason != self.reason:
            self.reason = reason
            self.changed.set()

    def saw(self, last_revision: int) -> None:
        """The stream has got so far."""
        self.last_revision = max(self.last_revision, last_revision)

    def report(self) -> SourceReport:
        """For the store."""
        return SourceReport(self.state, self.reason[:REASON_CHARS_MAX], self.last_revision, self.lag)
