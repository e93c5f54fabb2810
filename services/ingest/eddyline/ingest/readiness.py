"""Whether this replica serves: NATS connected and the store reached, each with its own word.

Threading: event loop.
"""

from __future__ import annotations

import asyncio


class Readiness:
    """What the two connections say of themselves. `changed` is set at every change."""

    def __init__(self) -> None:
        self.nats_connected = False
        self.store_reached = False
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
            missing.append("NATS_UNREACHABLE")
        if not self.store_reached:
            missing.append("STORE_UNREACHABLE")
        return " ".join(missing)

    def nats(self, connected: bool) -> None:
        """The connection to NATS changed."""
        self.nats_connected = connected
        self.changed.set()

    def store(self, reached: bool) -> None:
        """A call to the store succeeded or did not get through."""
        if reached != self.store_reached:
            self.store_reached = reached
            self.changed.set()
