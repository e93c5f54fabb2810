"""What an orchestrator asks a role over HTTP: is it alive, has it started, is it ready?

Beside gRPC health, since an orchestrator's own gRPC probes know neither TLS nor a state between started and ready.
I1: `/live` says that the process answers, and nothing else: it never depends on recovery, NATS, the store or the disk.
I2: `/started` is true from the moment recovery gets on, so that a long one is never taken for a hung start; how far it is,
and what a role that is not ready is missing, is in the answer of `/ready`.
Nothing here needs a key: an answer has no names and no data. Threading: event loop.
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
    """Bytes of log that a start has replayed, of all that it replays; a total of 0 is not known yet, or none."""

    replayed_bytes: int = 0
    total_bytes: int = 0


class ProbeAnswer(NamedTuple):
    """One answer."""

    status: HTTPStatus
    text: str


class ReadinessState(Protocol):
    """Whether a role serves, and what it waits for; `HealthBoard` has it."""

    @property
    def is_ready(self) -> bool:
        """True = the role serves."""
        ...

    @property
    def missing_legs(self) -> Sequence[str]:
        """The names of what it is not connected to."""
        ...


class Probes:
    """What one role answers. `recovered` is asked of a role that recovers something; others have none."""

    def __init__(self, health: ReadinessState, *, recovered: Callable[[], ReplayProgress] | None = None) -> None:
        self._health = health
        self._recovered = recovered

    def answer(self, path: str) -> ProbeAnswer | None:
        """What `path` asks; None where it is no probe."""
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
            said = f"recovering: {replayed} of {total} bytes of log, {100 * replayed // total} %"
            return ProbeAnswer(HTTPStatus.SERVICE_UNAVAILABLE, said)
        return ProbeAnswer(HTTPStatus.SERVICE_UNAVAILABLE, "not ready")
