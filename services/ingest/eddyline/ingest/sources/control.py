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

    def __init__(self, state: ControlState, definition: SourceDefinition) -> None:
        self._state = state
        self.definition = definition
        """The source's definition as it is now."""
        self.changed = asyncio.Event()
        """Set when others have come; cleared by whoever acts on it."""
        self.reason = ""
        """What the last ones were, in words."""
        self.on_change: Callable[[], None] = _nobody

    @property
    def paused(self) -> bool:
        """True = nothing is to be copied."""
        return self._state.paused

    @property
    def resync_serial(self) -> int:
        """Resyncs asked for so far."""
        return self._state.resync_serial

    def update(self, state: ControlState, changeable: SourceChange = NO_CHANGE) -> None:
        """Take what was told."""
        definition = changed_source(self.definition, changeable)
        if (state, definition) != (self._state, self.definition):
            self.reason = _describe_change(self._state, state, changes_text(self.definition, definition))
            self._state, self.definition = state, definition
            log.info("source ordered", extra=fields(source=definition.name, orders=self.reason))
            self.changed.set()
            self.on_change()


def _describe_change(previous: ControlState, current: ControlState, changes: str) -> str:
    """What was asked for."""
    changes_made = []
    if current.resync_serial > previous.resync_serial:
        changes_made.append("resync asked for")
    if current.paused != previous.paused:
        changes_made.append("paused" if current.paused else "resumed")
    if changes:
        changes_made.append(f"settings changed: {changes}")
    return ", ".join(changes_made)


def _nobody() -> None:
    """Nobody is copying."""
