"""Telemetry: every metric's name, and how a role logs and measures.

Owns the names (no module spells one itself) with their units in them, the log formats, and the meter's set-up.
A log event is a short constant string plus fields: `log.info("lease won", extra=fields(source=name, fence=3))`; never one
a record. Nothing is exported unless the caller brings a reader, and there are no spans yet.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader

STORE_APPENDED_RECORDS: Final = "eddyline_store_appended_records_total"
STORE_APPENDED_BYTES: Final = "eddyline_store_appended_bytes_total"
STORE_REFUSED_APPENDS: Final = "eddyline_store_refused_appends_total"
STORE_GROUP_FRAMES: Final = "eddyline_store_group_frames"
STORE_COMMIT_SECONDS: Final = "eddyline_store_commit_seconds"
STORE_SYNC_SECONDS: Final = "eddyline_store_sync_seconds"
STORE_APPLY_SECONDS: Final = "eddyline_store_apply_seconds"
STORE_APPLY_LAG_BYTES: Final = "eddyline_store_apply_lag_bytes"
STORE_WAL_BYTES: Final = "eddyline_store_wal_bytes"
STORE_TOPICS: Final = "eddyline_store_topics"
STORE_SOURCES: Final = "eddyline_store_sources"
STORE_READ_ONLY: Final = "eddyline_store_read_only"
STORE_DROPPED_IDEMPOTENCY_KEYS: Final = "eddyline_store_dropped_idempotency_keys_total"
STORE_FOLLOWED_TOPICS: Final = "eddyline_store_followed_topics"

INGEST_APPLIED_RECORDS: Final = "eddyline_ingest_applied_records_total"
INGEST_APPLY_SECONDS: Final = "eddyline_ingest_apply_seconds"
INGEST_SOURCE_LAG: Final = "eddyline_ingest_source_lag_revisions"
INGEST_RESYNCS: Final = "eddyline_ingest_resyncs_total"
INGEST_VERIFICATIONS: Final = "eddyline_ingest_verifications_total"
INGEST_DRIFTED_KEYS: Final = "eddyline_ingest_drifted_keys_total"
INGEST_CONSUMERS: Final = "eddyline_ingest_consumers_total"
INGEST_LEASES: Final = "eddyline_ingest_leases"

DELIVERY_WATCHES: Final = "eddyline_delivery_watches"
DELIVERY_FOLLOWED_TOPICS: Final = "eddyline_delivery_followed_topics"
DELIVERY_DELIVERED_RECORDS: Final = "eddyline_delivery_delivered_records_total"
DELIVERY_DELIVERED_BYTES: Final = "eddyline_delivery_delivered_bytes_total"
DELIVERY_BUFFERED_BYTES: Final = "eddyline_delivery_buffered_bytes"
DELIVERY_CATCHUP_READS: Final = "eddyline_delivery_catchup_reads_total"
DELIVERY_SECONDS: Final = "eddyline_delivery_latency_seconds"

_FIELDS: Final = "fields"


def fields(**values: str | float | bool | bytes | None) -> dict[str, object]:
    """Fields of a log event, for `extra`. Bytes are shown in hex."""
    return {_FIELDS: {key: value.hex() if isinstance(value, bytes) else value for key, value in values.items()}}


def make_meters(role: str, *, version: str, readers: Sequence[MetricReader] = ()) -> MeterProvider:
    """Make a role's meters. Without `readers` they count and nobody asks. The caller shuts them down."""
    # Imported here: it takes 120 ms, which modules that only log or name a metric need not pay.
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource

    # Not `Resource.create`, which runs detectors and reads the environment.
    resource = Resource({"service.namespace": "eddyline", "service.name": role, "service.version": version})
    return MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)


def set_up_logging(role: str, *, level: str, log_format: str, stream: TextIO | None = None) -> None:
    """Send the process's log to `stream` (None = stderr), as `plain` lines or one `json` object a line.

    Call it once, in `__main__`. `level` and `log_format` are those that `eddyline.core.settings` takes.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter(role) if log_format == "json" else PlainFormatter(role))
    logging.basicConfig(level=level, handlers=[handler], force=True)


class PlainFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO store lease won source=orders fence=3`."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        parts = [_time_of(record), record.levelname, self._role, record.getMessage()]
        parts += (f"{key}={_shown(value)}" for key, value in _fields_of(record).items())
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
    found = getattr(record, _FIELDS, None)
    return found if isinstance(found, dict) else {}


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(value: object) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(mark in text for mark in ' ="\n\r') else text
