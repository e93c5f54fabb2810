"""Saying, of each stream that a source begins with, what of its settings lets revisions go before they are read.

Once a stream, by its identity, however often it is looked at: made after its source, made again, or taken up again.
Threading: event loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eddyline.core.telemetry import fields

if TYPE_CHECKING:
    from eddyline.ingest.stream import Stream

log = logging.getLogger(__name__)


class Cautions:
    """What was said of a source's streams; the last one is known."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._told_of = b""

    def tell(self, stream: Stream) -> None:
        """Warn of a stream, unless it is the one that was told of last."""
        if stream.identity == self._told_of:
            return
        self._told_of = stream.identity
        if stream.cautions:
            caution = "; ".join(stream.cautions)
            log.warning("source may miss revisions", extra=fields(source=self._source, reason=caution))
