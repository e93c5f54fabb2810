"""What is asked of a source's holder: to pause, and to resync. The store keeps it and tells it with each renewal.

Threading: event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.source import SourceOrders


class Orders:
    """The newest orders of one source. `on_change` is called when others come."""

    def __init__(self, orders: SourceOrders) -> None:
        self._orders = orders
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

    def take(self, orders: SourceOrders) -> None:
        """Take what was told."""
        if orders != self._orders:
            self._orders = orders
            self.changed.set()
            self.on_change()


def _nobody() -> None:
    """Nobody is copying."""
