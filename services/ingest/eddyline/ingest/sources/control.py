"""What is asked of a source's holder: to pause, to resync, to go by other settings. The store keeps it and tells it with
each renewal.

Threading: event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from eddyline.core.model.source import NO_CHANGE, changed_source, changes_text
from eddyline.core.runtime.logging import fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.model.source import ControlState, SourceChange, SourceDefinition

log = logging.getLogger(__name__)


class SourceControl:
    """The newest orders of one source. `on_change` is called when others come."""

    def __init__(self, orders: ControlState, definition: SourceDefinition) -> None:
        self._orders = orders
        self.definition = definition
        """The source's definition as it is now."""
        self.changed = asyncio.Event()
        """Set when others have come; cleared by whoever acts on it."""
        self.why = ""
        """What the last ones were, in words."""
        self.on_change: Callable[[], None] = _nobody

    @property
    def paused(self) -> bool:
        """True = nothing is to be copied."""
        return self._orders.paused

    @property
    def resync_serial(self) -> int:
        """Resyncs asked for so far."""
        return self._orders.resync_serial

    def take(self, orders: ControlState, changeable: SourceChange = NO_CHANGE) -> None:
        """Take what was told."""
        definition = changed_source(self.definition, changeable)
        if (orders, definition) != (self._orders, self.definition):
            self.why = _words(self._orders, orders, changes_text(self.definition, definition))
            self._orders, self.definition = orders, definition
            log.info("source ordered", extra=fields(source=definition.name, orders=self.why))
            self.changed.set()
            self.on_change()


def _words(before: ControlState, after: ControlState, changes: str) -> str:
    """What was asked for."""
    told = []
    if after.resync_serial > before.resync_serial:
        told.append("resync asked for")
    if after.paused != before.paused:
        told.append("paused" if after.paused else "resumed")
    if changes:
        told.append(f"settings changed: {changes}")
    return ", ".join(told)


def _nobody() -> None:
    """Nobody is copying."""
