"""Warnings about stream settings that let revisions leave before they are read.

Each stream and its settings are logged once, however often NATS reports them: the stream may be created after its source,
recreated, or edited while it is copied, paused or stopped. The source's progress always has the present warnings.
Threading: event loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eddyline.core.runtime.logging import fields

if TYPE_CHECKING:
    from eddyline.ingest.copy.progress import CopyProgress
    from eddyline.ingest.nats.stream import Stream

log = logging.getLogger(__name__)


class StreamWarnings:
    """Warnings logged for one source; remembers the last one."""

    def __init__(self, source: str, progress: CopyProgress) -> None:
        self._source = source
        self._progress = progress
        self._warned: tuple[bytes, list[str]] = (b"", [])

    def warn_once(self, stream: Stream) -> None:
        """Log the stream's warnings, unless the last log line was about the same stream and the same warnings."""
        warnings = stream.loss_warnings
        self._progress.set_stream_settings(stream)
        if (stream.identity, warnings) == self._warned:
            return
        self._warned = stream.identity, warnings
        if warnings:
            log.warning("source may miss revisions", extra=fields(source=self._source, reason="; ".join(warnings)))
