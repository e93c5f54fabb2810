"""Saying, of each stream that a source reads, what of its settings lets revisions go before they are read.

Once a stream and its settings, however often it is looked at: made after its source, made again, taken up again, or edited
while it is copied, paused or stopped. What holds now is in the source's progress at all times.
Threading: event loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eddyline.core.runtime.logging import fields

if TYPE_CHECKING:
    from eddyline.ingest.copy.progress import Progress
    from eddyline.ingest.nats.stream import Stream

log = logging.getLogger(__name__)


class StreamWarnings:
    """What was said of a source's streams; the last one is known."""

    def __init__(self, source: str, progress: Progress) -> None:
        self._source = source
        self._progress = progress
        self._warned: tuple[bytes, list[str]] = (b"", [])

    def warn_once(self, stream: Stream) -> None:
        """Warn of a stream, unless it is the one that was told of last and may lose no more than then."""
        warnings = stream.loss_warnings
        self._progress.set_stream_settings(stream)
        if (stream.identity, warnings) == self._warned:
            return
        self._warned = stream.identity, warnings
        if warnings:
            log.warning("source may miss revisions", extra=fields(source=self._source, reason="; ".join(warnings)))
