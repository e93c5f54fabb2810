"""Why an export by OTLP failed: OpenTelemetry's exporters return no more than that it did, and log the reason.

So their log is heard, before their own filter, which drops what is like something of the same minute, and goes no further:
an outage is one line of ours. Rejected: the exporter's private stub.
Threading: any; each thread gets the words of its own exports.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

LOGGER: Final = "opentelemetry.exporter.otlp.proto.grpc.exporter"
UNSAID: Final = "no reason was given"


class FailureWords(logging.Filter):
    """What the exporters said last, by thread. One a process, in their logger."""

    def __init__(self) -> None:
        super().__init__()
        self._heard = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        self._heard.words = _words(record)
        return False

    def taken(self) -> str:
        """Why this thread's last export failed; it is forgotten with that."""
        words: str = getattr(self._heard, "words", "")
        self._heard.words = ""
        return words or UNSAID


def failure_words() -> FailureWords:
    """The process's one; it is put in its place at the first call."""
    logger = logging.getLogger(LOGGER)
    for found in logger.filters:
        if isinstance(found, FailureWords):
            return found
    made = FailureWords()
    logger.setLevel(logging.ERROR)
    logger.filters.insert(0, made)
    return made


def _words(record: logging.LogRecord) -> str:
    """`UNAVAILABLE: details`: the last two arguments of what they log."""
    if not isinstance(record.args, tuple) or len(record.args) < 2:
        return record.getMessage()
    code, details = record.args[-2:]
    return f"{getattr(code, 'name', code)}: {details}"
