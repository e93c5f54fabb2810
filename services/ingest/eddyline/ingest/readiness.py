"""Whether this replica serves: NATS connected and the store reached, each with its own word.

Threading: event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import ROLE_REFUSED, Code, NatsUnreachable, StoreUnreachable
from eddyline.core.telemetry import fields

if TYPE_CHECKING:
    from eddyline.core.errors import EddylineError

log = logging.getLogger(__name__)

REFUSED_S: Final = 5.0
"""How long until a store that refused this role is asked again: it is of another cluster, or does not know our key, until
somebody acts."""


class Readiness:
    """What the two connections say of themselves. `changed` is set at every change."""

    def __init__(self) -> None:
        self.nats_connected = False
        self._nats_refused = False
        self.store_reached = False
        self._store_trouble = StoreUnreachable.reason
        self.changed = asyncio.Event()

    @property
    def ready(self) -> bool:
        """True = both."""
        return self.nats_connected and self.store_reached

    @property
    def reason(self) -> str:
        """What is missing; empty where nothing is."""
        missing = []
        if not self.nats_connected:
            missing.append(NatsUnreachable.reason + (" (it refuses our credentials)" if self._nats_refused else ""))
        if not self.store_reached:
            missing.append(self._store_trouble)
        return " ".join(missing)

    def nats(self, connected: bool, *, refused: bool = False) -> None:
        """The connection to NATS changed; `refused` = it does not take our credentials."""
        self.nats_connected = connected
        self._nats_refused = refused
        self.changed.set()

    def store_answered(self) -> None:
        """A call to the store succeeded."""
        self._store(True, StoreUnreachable.reason)

    def store_failed(self, error: EddylineError) -> float:
        """A call to the store failed; the least time to wait before the next."""
        if isinstance(error, ROLE_REFUSED):
            if self._store_trouble != error.reason:  # said once, until it takes our calls
                log.error("the store refuses this role", extra=fields(reason=error.reason, error=error.message))
            self._store(False, error.reason)
            return REFUSED_S
        if error.code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED):
            self._store(False, StoreUnreachable.reason)
        else:
            log.error("store call failed", extra=fields(error=error.message))
        return 0.0

    def _store(self, reached: bool, trouble: str) -> None:
        self._store_trouble = trouble
        if reached != self.store_reached:
            self.store_reached = reached
            self.changed.set()
