"""Control state of one source: paused, requested resync number, changeable settings.

The store persists it and returns it with every lease renewal.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from eddyline.core.model.source import NO_CHANGE, changed_source, changes_text
from eddyline.core.runtime.logging import fields
from eddyline.core.runtime.tasks import noop

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.model.source import ControlState, SourceChange, SourceDefinition

log = logging.getLogger(__name__)


class SourceControl:
    """Latest control state of one source. `on_change` is called at every change."""

    def __init__(self, state: ControlState, definition: SourceDefinition) -> None:
        self._state = state
        self.definition = definition
        """The source's definition with its present settings."""
        self.changed = asyncio.Event()
        """Set at every change; cleared by the source's run."""
        self.reason = ""
        """Description of the last change."""
        self.on_change: Callable[[], None] = noop

    @property
    def paused(self) -> bool:
        """True = the source must not copy."""
        return self._state.paused

    @property
    def resync_serial(self) -> int:
        """Number of resyncs requested so far."""
        return self._state.resync_serial

    def update(self, state: ControlState, changeable: SourceChange = NO_CHANGE) -> None:
        """Apply the state that the store returned; sets `changed` and calls `on_change` where it differs."""
        definition = changed_source(self.definition, changeable)
        if (state, definition) != (self._state, self.definition):
            self.reason = _describe_change(self._state, state, changes_text(self.definition, definition))
            self._state, self.definition = state, definition
            log.info("source ordered", extra=fields(source=definition.name, orders=self.reason))
            self.changed.set()
            self.on_change()


def _describe_change(previous: ControlState, current: ControlState, changes: str) -> str:
    """Describe the difference as text."""
    changes_made = []
    if current.resync_serial > previous.resync_serial:
        changes_made.append("resync requested")
    if current.paused != previous.paused:
        changes_made.append("paused" if current.paused else "resumed")
    if changes:
        changes_made.append(f"settings changed: {changes}")
    return ", ".join(changes_made)
