"""Log output of roles: an event and its fields, as plain or JSON lines."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final, TextIO

_FIELDS: Final = "fields"


def fields(**values: str | float | bool | bytes | None) -> dict[str, object]:
    """Return the fields of a log event, for `extra`. Bytes become hex."""
    return {_FIELDS: {key: value.hex() if isinstance(value, bytes) else value for key, value in values.items()}}


def set_up_logging(role: str, *, level: str, log_format: str, stream: TextIO | None = None) -> None:
    """Send the process's log to `stream` (None = stderr), as `plain` lines or one `json` object a line.

    Call it once, in `__main__`. `level` and `log_format` are values of `CommonSettings`.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter(role) if log_format == "json" else PlainFormatter(role))
    logging.basicConfig(level=level, handlers=[handler], force=True)


ROLE_COLUMNS: Final = len("delivery")


class PlainFormatter(logging.Formatter):
    """`store    | 2026-01-31T12:00:00.000Z INFO lease won source=orders fence=3`.

    The role comes first, for several roles in one terminal.
    """

    def __init__(self, role: str) -> None:
        super().__init__()
        self._prefix = f"{role:<{ROLE_COLUMNS}} |"

    def format(self, record: logging.LogRecord) -> str:
        parts = [self._prefix, _time_of(record), record.levelname, record.getMessage()]
        parts += (f"{key}={_quoted(value)}" for key, value in _fields_of(record).items())
        line = " ".join(parts)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, role, logger, event, the fields, and an error's trace."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname,
            "role": self._role,
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update({key: value for key, value in _fields_of(record).items() if key not in line})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    values = getattr(record, _FIELDS, None)
    return values if isinstance(values, dict) else {}


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _quoted(value: object) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(mark in text for mark in ' ="\n\r') else text
