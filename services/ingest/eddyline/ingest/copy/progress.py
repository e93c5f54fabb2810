"""Progress of a source: its state and figures, as reported to the store, health and status.

Owns the order of states: a stop ends only by its remedy, never by a repeated check, which would flicker. OVERSIZE ends
when the source is LIVE, every other stop when it copies again, and each when it is paused. Each change of state is one
line of log, with the reason and the counts.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from eddyline.core.model.source import TEXT_BYTES_MAX, WARNINGS_MAX, SourceDetail, SourceReport
from eddyline.core.runtime.logging import fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.runtime.clock import Clock
    from eddyline.ingest.nats.stream import Stream

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
"""Bound of a reason: the contract takes 1 KiB, and a character has at most four bytes."""
RATE_WINDOW_S: Final = 10.0
"""Window of a rate: long enough that a batch more or less does not move it, short enough to follow NATS."""
RATE_SAMPLE_S: Final = 1.0

assert REASON_CHARS_MAX * 4 <= TEXT_BYTES_MAX


@dataclass(slots=True)
class SourceCounts:
    """Counts of one source under one lease. `applied` = records that the store took, gaps and synthetic deletes too;
    `resyncs` = key sets compared, or streams adopted; `consumers` = consumers created."""

    applied: int = 0
    gaps: int = 0
    synthetic_deletes: int = 0
    dead_letters: int = 0
    resyncs: int = 0
    consumers: int = 0


class Rate:
    """Revisions applied a second, over the last `RATE_WINDOW_S`. At most one sample a second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=round(RATE_WINDOW_S / RATE_SAMPLE_S) + 1)

    def add(self, now_s: float, revision: int) -> None:
        """Record that everything up to `revision` is applied at `now_s`. A smaller one than before is of another stream."""
        samples = self._samples
        if samples and revision < samples[-1][1]:
            samples.clear()
        if not samples or now_s - samples[-1][0] >= RATE_SAMPLE_S:
            samples.append((now_s, revision))

    def per_s(self, now_s: float, revision: int) -> float:
        """The rate at `now_s`, with everything up to `revision` applied; 0 = nothing moved, or too early for a rate."""
        while len(self._samples) > 1 and now_s - self._samples[1][0] >= RATE_WINDOW_S:
            self._samples.popleft()
        if not self._samples:
            return 0.0
        since_s, first = self._samples[0]
        return max(revision - first, 0) / (now_s - since_s) if now_s - since_s >= RATE_SAMPLE_S else 0.0


class CopyProgress:
    """State of one source. `changed` is set at every change of state or reason."""

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
        """Last revision of the present stream, if the position is of another one."""
        self._reported_revision = 0
        """`last_revision` as last reported."""
        self._caught_up_s = self._reported_s = self._since_s
        self.drift_count = 0
        """Keys that differed at the last verification."""
        self._verified_s: float | None = None
        self._decision = ""
        self._decision_s = self._since_s
        self._loss_warnings: tuple[str, ...] = ()
        self._peers: tuple[str, ...] = ()
        self._file_drift = self._file_note = ""
        self._rate = Rate()
        self.changed = asyncio.Event()

    @property
    def position_revision(self) -> int:
        """Revision up to which everything is applied."""
        return self._position_revision

    @position_revision.setter
    def position_revision(self, revision: int) -> None:
        # Readers that compare the store's position with an older report would take a lagging source for caught up. A
        # source that is LIVE passes its reports all the time: its lag then is over by the next.
        """Revision up to which everything is applied."""
        if self.state != "LIVE" and self._reported_revision <= revision < self.last_revision:
            self.changed.set()
        self._position_revision = revision
        self._rate.add(self._clock.monotonic_s(), revision)
        self._note_caught_up()

    @property
    def loss_warnings(self) -> tuple[str, ...]:
        """Settings of its bucket or stream that may lose revisions, as last seen, as texts."""
        return self._loss_warnings

    def set_stream_settings(self, stream: Stream) -> None:
        """Take over the warnings about the stream's settings and servers."""
        loss_warnings, peers = tuple(stream.loss_warnings), stream.peer_troubles
        if (loss_warnings, peers) != (self._loss_warnings, self._peers):
            self._loss_warnings, self._peers = loss_warnings, peers
            self.changed.set()

    @property
    def warnings(self) -> tuple[str, ...]:
        """All warnings, as texts."""
        warnings = (*filter(None, (self._file_note,)), *warnings_of(self._loss_warnings), *self._peers)
        return tuple(_cut(warning) for warning in warnings[:WARNINGS_MAX])

    def set_file_drift(self, drift: str, note: str) -> None:
        """Set the difference from the sources file, and the warning about it; "" = none."""
        self._file_drift, self._file_note = _cut(drift), _cut(note)

    @property
    def file_drift(self) -> str:
        """Difference from the sources file; "" = none."""
        return self._file_drift

    @property
    def revisions_per_s(self) -> float:
        """Revisions applied a second, over the last 10 s."""
        return self._rate.per_s(self._clock.monotonic_s(), self._position_revision)

    @property
    def remaining_s(self) -> float | None:
        """Time until the known lag is applied, while the backlog is read; None = unknown."""
        per_s = self.revisions_per_s
        return self.lag / per_s if per_s and self.state in ("SNAPSHOT", "CATCHING_UP") else None

    @property
    def lag(self) -> int:
        """Revisions between the stream's last one, as last seen, and the position; all of a stream that the position is not
        of."""
        if self._other_revision is not None:
            return self._other_revision
        return max(self.last_revision - self.position_revision, 0)

    @property
    def lag_s(self) -> float:
        """Time since the source was last caught up; 0 = it is."""
        return self._clock.monotonic_s() - self._caught_up_s if self.lag else 0.0

    @property
    def report_age_s(self) -> float:
        """Time since the store took a report, or since copying began."""
        return self._clock.monotonic_s() - self._reported_s

    @property
    def since_ms(self) -> int:
        """Time in this state."""
        return round((self._clock.monotonic_s() - self._since_s) * 1000)

    @property
    def verified_ms(self) -> int:
        """Time since the last verification; -1 = none yet."""
        if self._verified_s is None:
            return -1
        return round((self._clock.monotonic_s() - self._verified_s) * 1000)

    def record_verification(self, drift_count: int) -> None:
        """Record a verification that left so many keys different."""
        self._verified_s = self._clock.monotonic_s()
        self.drift_count = drift_count

    def set_state(self, state: State, reason: str = "", *, detail: str = "") -> None:
        """Change to `state`. `reason` = the problem; `detail` = the action, for the log and `decision`."""
        if self.state in STOPPED and not _ends(self.state, state):
            return
        if state != self.state:
            why = "; ".join(filter(None, (reason, detail)))
            self._log_state(state, why)
            if why and state not in ("LIVE", "RECOVERING"):  # these two states are no decisions: the source goes on
                self._decision, self._decision_s = _cut(why), self._clock.monotonic_s()
            self.state = state
            self._since_s = self._clock.monotonic_s()
            self.changed.set()
        self.set_reason(reason)

    def _log_state(self, state: State, why: str) -> None:
        level = logging.ERROR if state in STOPPED else logging.INFO
        log_fields = fields(
            source=self._source,
            state=state,
            was=self.state,
            position=self.position_revision,
            lag=self.lag,
            reason=why or "-",
        )
        log.log(level, "source state", extra=log_fields)

    def set_reason(self, reason: str) -> None:
        """Set the reason without a change of state; "" = no problem."""
        if reason != self.reason:
            self.reason = reason
            self.changed.set()

    def switch_stream(self, position_revision: int, last_revision: int) -> None:
        """Take over the figures of another stream."""
        self._other_revision = None
        self.last_revision = last_revision
        self.position_revision = position_revision

    def set_head(self, last_revision: int) -> None:
        """Record the stream's last revision."""
        self._note_caught_up()  # caught up until now, if it was
        self._other_revision = None
        self.last_revision = max(self.last_revision, last_revision)

    def set_other_head(self, last_revision: int) -> None:
        """Record the last revision of a present stream that the position is not of: nothing of it is applied."""
        if self._other_revision is None:
            self._note_caught_up()
            self.changed.set()
        self._other_revision = last_revision

    def record_report(self) -> None:
        """Record that the store took a report."""
        self._reported_s = self._clock.monotonic_s()

    def _note_caught_up(self) -> None:
        if not self.lag:
            self._caught_up_s = self._clock.monotonic_s()

    def report(self) -> SourceReport:
        """Return the report for the store."""
        self._reported_revision = self.last_revision
        return self.current_report()

    def current_report(self) -> SourceReport:
        """Return the present report."""
        reason = self.reason[:REASON_CHARS_MAX]
        return SourceReport(self.state, reason, self.last_revision, self.lag, self._detail())

    def _detail(self) -> SourceDetail:
        remaining_s = self.remaining_s
        return SourceDetail(
            state_ms=self.since_ms,
            decision=self._decision,
            decision_ms=round((self._clock.monotonic_s() - self._decision_s) * 1000) if self._decision else 0,
            warnings=self.warnings,
            file_drift=self._file_drift,
            drift_count=self.drift_count,
            verified_ms=self.verified_ms,
            revisions_per_s=round(self.revisions_per_s),
            remaining_ms=-1 if remaining_s is None else round(remaining_s * 1000),
        )


def warnings_of(loss_warnings: Sequence[str]) -> list[str]:
    """Warnings of settings by which a bucket or stream may lose revisions."""
    return [f"may miss revisions: {warning}" for warning in loss_warnings]


def _cut(text: str) -> str:
    """The text, cut to the contract's bound."""
    return text.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")


def _ends(stop: State, state: State) -> bool:
    """Whether entering `state` ends a stop."""
    if state in STOPPED or state == "PAUSED":
        return True
    return state == "LIVE" if stop == "OVERSIZE" else state in COPYING
