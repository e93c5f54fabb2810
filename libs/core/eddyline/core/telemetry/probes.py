"""HTTP probes of a role for an orchestrator: alive, started, ready.

They exist next to gRPC health, since an orchestrator's own gRPC probes know neither TLS nor a state between started and
ready.
I1: `/live` means only that the process answers: it never depends on recovery, NATS, the store or the disk. I2: `/started`
is true once recovery makes progress, so that a long recovery is not taken for a hung start; the progress, and what a role
that is not ready is missing, is in the answer of `/ready`. No probe needs a key: an answer has no names and no data.
Threading: event loop.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIVE_PATH: Final = "/live"
STARTED_PATH: Final = "/started"
READY_PATH: Final = "/ready"


class ReplayProgress(NamedTuple):
    """Bytes of log that recovery has replayed, of its total; a total of 0 = unknown yet, or nothing to replay."""

    replayed_bytes: int = 0
    total_bytes: int = 0


class ProbeAnswer(NamedTuple):
    """HTTP answer to one probe."""

    status: HTTPStatus
    text: str


class ReadinessState(Protocol):
    """State of a role: whether it serves, and which connections it lacks. `HealthBoard` implements it."""

    @property
    def is_ready(self) -> bool:
        """Return True if the role serves."""
        ...

    @property
    def missing_legs(self) -> Sequence[str]:
        """Return the names of legs that are not connected."""
        ...


class Probes:
    """Probes of one role. `recovered` returns the progress of recovery; None = the role recovers nothing."""

    def __init__(self, health: ReadinessState, *, recovered: Callable[[], ReplayProgress] | None = None) -> None:
        self._health = health
        self._recovered = recovered

    def answer(self, path: str) -> ProbeAnswer | None:
        """Answer the probe `path`; None = the path is no probe."""
        if path == LIVE_PATH:
            return ProbeAnswer(HTTPStatus.OK, "live")
        if path == STARTED_PATH:
            return self._started()
        return self._ready() if path == READY_PATH else None

    def _started(self) -> ProbeAnswer:
        if self._recovered is None or self._health.is_ready or self._recovered().total_bytes:
            return ProbeAnswer(HTTPStatus.OK, "started")
        return ProbeAnswer(HTTPStatus.SERVICE_UNAVAILABLE, "starting")

    def _ready(self) -> ProbeAnswer:
        if self._health.is_ready:
            return ProbeAnswer(HTTPStatus.OK, "ready")
        if missing := self._health.missing_legs:
            return ProbeAnswer(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {', '.join(missing)} not reached")
        replayed, total = self._recovered() if self._recovered else ReplayProgress()
        if replayed < total:
            text = f"recovering: {replayed} of {total} bytes of log, {100 * replayed // total} %"
            return ProbeAnswer(HTTPStatus.SERVICE_UNAVAILABLE, text)
        return ProbeAnswer(HTTPStatus.SERVICE_UNAVAILABLE, "not ready")
