"""What is asked of a source's holder: to pause, to resync, to go by other settings. The store keeps it and tells it with
each renewal.

Threading: event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from eddyline.core.source import NO_CHANGE, changed_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.source import SourceChange, SourceDefinition, SourceOrders


class Orders:
    """The newest orders of one source. `on_change` is called when others come."""

    def __init__(self, orders: SourceOrders, definition: SourceDefinition) -> None:
        self._orders = orders
        self.definition = definition
        """The source's definition as it is now."""
        self.changed = asyncio.Event()
        """Set when others have come; cleared by whoever acts on it."""
        self.on_change: Callable[[], None] = _nobody

    @property
    def paused(self) -> bool:
        """True = nothing is to be copied."""
        return self._orders.paused

    @property
    def resync_serial(self) -> int:
        """Resyncs asked for so far."""
        return self._orders.resync_serial

    def take(self, orders: SourceOrders, changeable: SourceChange = NO_CHANGE) -> None:
        """Take what was told."""
        definition = changed_source(self.definition, changeable)
        if (orders, definition) != (self._orders, self.definition):
            self._orders, self.definition = orders, definition
            self.changed.set()
            self.on_change()


def _nobody() -> None:
    """Nobody is copying."""
