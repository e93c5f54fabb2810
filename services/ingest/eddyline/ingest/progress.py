"""What a source is doing now: its state and figures, as reported to the store, health and status.

Owns the order of states: a stop is left by what ends it and not by looking again, which would flicker. OVERSIZE ends when
the source is LIVE, every other stop when it is copying again, and each when it is paused. A line of log a change of state,
with the reason and the counts.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from eddyline.core.source import SourceReport
from eddyline.core.telemetry import fields

if TYPE_CHECKING:
    from eddyline.core.clock import Clock

State = Literal[
    "CONNECTING",
    "SNAPSHOT",
    "RESYNCING",
    "CATCHING_UP",
    "LIVE",
    "RECOVERING",
    "PAUSED",
    "SOURCE_LOST",
    "CURSOR_EXPIRED",
    "CURSOR_AHEAD",
    "STREAM_RECREATED",
    "OVERSIZE",
]
"""Names of the contract's `SourceStatus`."""

STATES: Final[tuple[State, ...]] = get_args(State)
COPYING: Final[frozenset[State]] = frozenset(("SNAPSHOT", "RESYNCING", "CATCHING_UP", "LIVE"))
STOPPED: Final[frozenset[State]] = frozenset(
    ("SOURCE_LOST", "CURSOR_EXPIRED", "STREAM_RECREATED", "CURSOR_AHEAD", "OVERSIZE")
)
log = logging.getLogger(__name__)

REASON_CHARS_MAX: Final = 250
"""The contract takes 1 KiB; four bytes a character at most."""


@dataclass(slots=True)
class SourceCounts:
    """What was done for a source under one lease. `applied` = records that the store took, gaps and synthetic deletes too;
    `resyncs` = key sets compared, or a stream taken as it is; `consumers` = consumers made."""

    applied: int = 0
    gaps: int = 0
    synthetic_deletes: int = 0
    dead_letters: int = 0
    resyncs: int = 0
    consumers: int = 0


class Progress:
    """One source's state. `changed` is set at every change of state or reason, for whoever reports it."""

    def __init__(self, clock: Clock, source: str = "") -> None:
        self._clock = clock
        self._source = source
        self._since_s = clock.monotonic_s()
        self.state: State = "CONNECTING"
        self.reason = ""
        self.counts = SourceCounts()
        self._position_revision = 0
        self.last_revision = 0
        self._other_revision: int | None = None
        """Last revision of the stream that is there now, where the position is of another one."""
        self._told_revision = 0
        """`last_revision` as last reported."""
        self._level_s = self._reported_s = self._since_s
        self.drift_count = 0
        """Keys that differed when it was last verified."""
        self._verified_s: float | None = None
        self.changed = asyncio.Event()

    @property
    def position_revision(self) -> int:
        """Revision up to which everything is applied."""
        return self._position_revision

    @position_revision.setter
    def position_revision(self, revision: int) -> None:
        # Who compares the store's position with an older report would take a source for level that is not. One that is LIVE
        # passes its reports all the time: what it lags then is over by the next.
        if self.state != "LIVE" and self._told_revision <= revision < self.last_revision:
            self.changed.set()
        self._position_revision = revision
        self._note_level()

    @property
    def lag(self) -> int:
        """Revisions between the stream's last one, as last seen, and the position; all of a stream that the position is not
        of."""
        if self._other_revision is not None:
            return self._other_revision
        return max(self.last_revision - self.position_revision, 0)

    @property
    def lag_s(self) -> float:
        """Time since the position was last that of the stream's last revision, as last seen; 0 = it is."""
        return self._clock.monotonic_s() - self._level_s if self.lag else 0.0

    @property
    def report_age_s(self) -> float:
        """Time since the store took a report, or since it is copied."""
        return self._clock.monotonic_s() - self._reported_s

    @property
    def since_ms(self) -> int:
        """Time in this state."""
        return round((self._clock.monotonic_s() - self._since_s) * 1000)

    @property
    def verified_ms(self) -> int:
        """Time since it was last verified; -1 = not yet."""
        if self._verified_s is None:
            return -1
        return round((self._clock.monotonic_s() - self._verified_s) * 1000)

    def verified(self, drift_count: int) -> None:
        """Fold and bucket were compared; so many keys still differ."""
        self._verified_s = self._clock.monotonic_s()
        self.drift_count = drift_count

    def enter(self, state: State, reason: str = "", *, detail: str = "") -> None:
        """Be in `state` from now on. `reason` = what is wrong; `detail` = what was done, for the log alone."""
        if self.state in STOPPED and not _ends(self.state, state):
            return
        if state != self.state:
            self._tell(state, "; ".join(filter(None, (reason, detail))))
            self.state = state
            self._since_s = self._clock.monotonic_s()
            self.changed.set()
        self.explain(reason)

    def _tell(self, state: State, why: str) -> None:
        level = logging.ERROR if state in STOPPED else logging.INFO
        told = fields(
            source=self._source,
            state=state,
            was=self.state,
            position=self.position_revision,
            lag=self.lag,
            reason=why or "-",
        )
        log.log(level, "source state", extra=told)

    def explain(self, reason: str) -> None:
        """Say why, without a change of state; "" = all is well."""
        if reason != self.reason:
            self.reason = reason
            self.changed.set()

    def forget(self, position_revision: int, last_revision: int) -> None:
        """It is another stream now, applied so far, and got so far."""
        self._other_revision = None
        self.last_revision = last_revision
        self.position_revision = position_revision

    def saw(self, last_revision: int) -> None:
        """The stream has got so far."""
        self._note_level()  # up to now it was, if it was
        self._other_revision = None
        self.last_revision = max(self.last_revision, last_revision)

    def saw_other(self, last_revision: int) -> None:
        """The stream that is there now is not the position's: nothing of it is applied, and it has got so far."""
        if self._other_revision is None:
            self._note_level()
            self.changed.set()
        self._other_revision = last_revision

    def reported(self) -> None:
        """The store took a report."""
        self._reported_s = self._clock.monotonic_s()

    def _note_level(self) -> None:
        if not self.lag:
            self._level_s = self._clock.monotonic_s()

    def report(self) -> SourceReport:
        """For the store."""
        self._told_revision = self.last_revision
        return self.look()

    def look(self) -> SourceReport:
        """As it is now."""
        return SourceReport(self.state, self.reason[:REASON_CHARS_MAX], self.last_revision, self.lag)


def _ends(stop: State, state: State) -> bool:
    """Whether a source that is stopped is so no more once it is in `state`."""
    if state in STOPPED or state == "PAUSED":
        return True
    return state == "LIVE" if stop == "OVERSIZE" else state in COPYING
