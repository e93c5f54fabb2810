"""Readiness of this replica: NATS connected and the store reached, each with its reason.

Threading: event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import ROLE_REFUSED, Code, NatsUnreachable, StoreUnreachable
from eddyline.core.runtime.logging import fields

if TYPE_CHECKING:
    from eddyline.core.errors import EddylineError

log = logging.getLogger(__name__)

REFUSED_S: Final = 5.0
"""Pause before the next call to a store that refused this role: it is of another cluster, or does not know our key, until an
operator acts."""


class Readiness:
    """State of the connections to NATS and to each store. `changed` is set at every change."""

    def __init__(self, store_count: int = 1) -> None:
        self.nats_connected = False
        self._nats_refused = False
        self._reached = [False] * store_count
        self._troubles = [StoreUnreachable.reason] * store_count
        self.changed = asyncio.Event()

    @property
    def ready(self) -> bool:
        """True = it copies: NATS is connected, and at least one store reached."""
        return self.nats_connected and any(self._reached)

    @property
    def stores_reached(self) -> tuple[bool, ...]:
        """Whether each store answers."""
        return tuple(self._reached)

    @property
    def reason(self) -> str:
        """Reasons of unreadiness; empty if ready."""
        missing = []
        if not self.nats_connected:
            missing.append(NatsUnreachable.reason + (" (it refuses the credentials)" if self._nats_refused else ""))
        for shard, (reached, trouble) in enumerate(zip(self._reached, self._troubles, strict=True)):
            if not reached:
                missing.append(trouble if len(self._reached) == 1 else f"{trouble} (shard {shard})")
        return " ".join(missing)

    def set_nats(self, connected: bool, *, refused: bool = False) -> None:
        """Set the state of the connection to NATS; `refused` = NATS refuses our credentials."""
        self.nats_connected = connected
        self._nats_refused = refused
        self.changed.set()

    def store_answered(self, shard: int = 0) -> None:
        """Record a successful call to a store."""
        self._store(shard, True, StoreUnreachable.reason)

    def store_failed(self, error: EddylineError, shard: int = 0) -> float:
        """Record a failed call to a store; returns the least time to wait before the next."""
        if isinstance(error, ROLE_REFUSED):
            if self._troubles[shard] != error.reason:  # logged once, until the store accepts our calls
                log_fields = fields(shard=shard, reason=error.reason, error=error.message)
                log.error("the store refuses this role", extra=log_fields)
            self._store(shard, False, error.reason)
            return REFUSED_S
        if error.code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED):
            self._store(shard, False, StoreUnreachable.reason)
        else:
            log.error("store call failed", extra=fields(shard=shard, error=error.message))
        return 0.0

    def _store(self, shard: int, reached: bool, trouble: str) -> None:
        self._troubles[shard] = trouble
        if reached != self._reached[shard]:
            self._reached[shard] = reached
            self.changed.set()
