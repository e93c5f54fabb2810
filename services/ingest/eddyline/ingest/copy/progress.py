"""What a source is doing now: its state and figures, as reported to the store, health and status.

Owns the order of states: a stop is left by what ends it and not by looking again, which would flicker. OVERSIZE ends when
the source is LIVE, every other stop when it is copying again, and each when it is paused. A line of log a change of state,
with the reason and the counts.
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
"""The contract takes 1 KiB; four bytes a character at most."""
RATE_WINDOW_S: Final = 10.0
"""A rate is that of the last 10 s: long enough that a batch more or less does not move it, short enough to follow NATS."""
RATE_SAMPLE_S: Final = 1.0

assert REASON_CHARS_MAX * 4 <= TEXT_BYTES_MAX


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


class Rate:
    """Revisions applied a second, over the last `RATE_WINDOW_S`. A sample a second at most."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=round(RATE_WINDOW_S / RATE_SAMPLE_S) + 1)

    def add(self, now_s: float, revision: int) -> None:
        """Everything up to `revision` is applied at `now_s`. A smaller one than before is of another stream."""
        samples = self._samples
        if samples and revision < samples[-1][1]:
            samples.clear()
        if not samples or now_s - samples[-1][0] >= RATE_SAMPLE_S:
            samples.append((now_s, revision))

    def per_s(self, now_s: float, revision: int) -> float:
        """The rate at `now_s`, when everything up to `revision` is applied; 0 = nothing moved, or it is too early to say."""
        while len(self._samples) > 1 and now_s - self._samples[1][0] >= RATE_WINDOW_S:
            self._samples.popleft()
        if not self._samples:
            return 0.0
        since_s, first = self._samples[0]
        return max(revision - first, 0) / (now_s - since_s) if now_s - since_s >= RATE_SAMPLE_S else 0.0


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
        self._reported_revision = 0
        """`last_revision` as last reported."""
        self._caught_up_s = self._reported_s = self._since_s
        self.drift_count = 0
        """Keys that differed when it was last verified."""
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
        # Who compares the store's position with an older report would take a source for level that is not. One that is LIVE
        # passes its reports all the time: what it lags then is over by the next.
        if self.state != "LIVE" and self._reported_revision <= revision < self.last_revision:
            self.changed.set()
        self._position_revision = revision
        self._rate.add(self._clock.monotonic_s(), revision)
        self._note_caught_up()

    @property
    def loss_warnings(self) -> tuple[str, ...]:
        """What of its bucket's or stream's settings may lose revisions, as last seen, each for people."""
        return self._loss_warnings

    def set_stream_settings(self, stream: Stream) -> None:
        """The stream was asked for: its settings, and its servers."""
        loss_warnings, peers = tuple(stream.loss_warnings), stream.peer_troubles
        if (loss_warnings, peers) != (self._loss_warnings, self._peers):
            self._loss_warnings, self._peers = loss_warnings, peers
            self.changed.set()

    @property
    def warnings(self) -> tuple[str, ...]:
        """All that there is to warn of, each for people."""
        warnings = (*filter(None, (self._file_note,)), *warnings_of(self._loss_warnings), *self._peers)
        return tuple(_cut(warning) for warning in warnings[:WARNINGS_MAX])

    def set_file_drift(self, drift: str, note: str) -> None:
        """How it differs from the sources file, and what else the next report tells of that; "" = nothing."""
        self._file_drift, self._file_note = _cut(drift), _cut(note)

    @property
    def file_drift(self) -> str:
        """How it differs from the sources file; "" = it does not."""
        return self._file_drift

    @property
    def revisions_per_s(self) -> float:
        """Revisions applied a second, over the last 10 s."""
        return self._rate.per_s(self._clock.monotonic_s(), self._position_revision)

    @property
    def remaining_s(self) -> float | None:
        """Time until what is known to lag is applied, while what there is is being read; None = not known."""
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
        """Time since the position was last that of the stream's last revision, as last seen; 0 = it is."""
        return self._clock.monotonic_s() - self._caught_up_s if self.lag else 0.0

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

    def record_verification(self, drift_count: int) -> None:
        """Fold and bucket were compared; so many keys still differ."""
        self._verified_s = self._clock.monotonic_s()
        self.drift_count = drift_count

    def set_state(self, state: State, reason: str = "", *, detail: str = "") -> None:
        """Be in `state` from now on. `reason` = what is wrong; `detail` = what was done, for the log and `decision`."""
        if self.state in STOPPED and not _ends(self.state, state):
            return
        if state != self.state:
            why = "; ".join(filter(None, (reason, detail)))
            self._log_state(state, why)
            if why and state not in ("LIVE", "RECOVERING"):  # these two are no decisions: it goes on
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
        """Say why, without a change of state; "" = all is well."""
        if reason != self.reason:
            self.reason = reason
            self.changed.set()

    def switch_stream(self, position_revision: int, last_revision: int) -> None:
        """It is another stream now, applied so far, and got so far."""
        self._other_revision = None
        self.last_revision = last_revision
        self.position_revision = position_revision

    def set_head(self, last_revision: int) -> None:
        """The stream has got so far."""
        self._note_caught_up()  # up to now it was, if it was
        self._other_revision = None
        self.last_revision = max(self.last_revision, last_revision)

    def set_other_head(self, last_revision: int) -> None:
        """The stream that is there now is not the position's: nothing of it is applied, and it has got so far."""
        if self._other_revision is None:
            self._note_caught_up()
            self.changed.set()
        self._other_revision = last_revision

    def record_report(self) -> None:
        """The store took a report."""
        self._reported_s = self._clock.monotonic_s()

    def _note_caught_up(self) -> None:
        if not self.lag:
            self._caught_up_s = self._clock.monotonic_s()

    def report(self) -> SourceReport:
        """For the store."""
        self._reported_revision = self.last_revision
        return self.current_report()

    def current_report(self) -> SourceReport:
        """As it is now."""
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
    """Warnings of what a bucket or stream may lose."""
    return [f"may miss revisions: {warning}" for warning in loss_warnings]


def _cut(text: str) -> str:
    """A text as long as the contract takes it."""
    return text.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")


def _ends(stop: State, state: State) -> bool:
    """Whether a source that is stopped is so no more once it is in `state`."""
    if state in STOPPED or state == "PAUSED":
        return True
    return state == "LIVE" if stop == "OVERSIZE" else state in COPYING
