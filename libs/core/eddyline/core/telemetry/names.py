"""Telemetry: every metric's and every span's name, and how a role logs.

Owns the names (no module spells one itself) with their units in them, the names of labels, and the log formats. What a
name means, and where its value comes from, is in the `metrics.py` of its role; how it is exported in
`eddyline.core.telemetry.metrics_export`. A log event is a short constant string plus fields:
`log.info("lease won", extra=fields(source=name, fence=3))`; never one a record. Spans are made by
`eddyline.core.telemetry.tracing`: their names, and those of their attributes, are here too.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final, TextIO

STORE_READY: Final = "eddyline_store_ready"
STORE_READ_ONLY: Final = "eddyline_store_read_only"
STORE_APPENDED_RECORDS: Final = "eddyline_store_appended_records_total"
STORE_APPENDED_BYTES: Final = "eddyline_store_appended_bytes_total"
STORE_REFUSED_APPENDS: Final = "eddyline_store_refused_appends_total"
STORE_STAGED_BYTES: Final = "eddyline_store_staged_bytes"
STORE_GROUP_FRAMES: Final = "eddyline_store_group_frames"
STORE_COMMIT_SECONDS: Final = "eddyline_store_commit_seconds"
STORE_SYNC_SECONDS: Final = "eddyline_store_sync_seconds"
STORE_APPLY_SECONDS: Final = "eddyline_store_apply_seconds"
STORE_APPLY_LAG_RECORDS: Final = "eddyline_store_apply_lag_records"
STORE_APPLY_LAG_BYTES: Final = "eddyline_store_apply_lag_bytes"
STORE_APPLY_LAG_SECONDS: Final = "eddyline_store_apply_lag_seconds"
STORE_WAL_BYTES: Final = "eddyline_store_wal_bytes"
STORE_UNSYNCED_BYTES: Final = "eddyline_store_unsynced_bytes"
STORE_UNSEGMENTED_BYTES: Final = "eddyline_store_unsegmented_bytes"
STORE_SEGMENTS: Final = "eddyline_store_segments"
STORE_SEGMENT_BYTES: Final = "eddyline_store_segment_bytes"
STORE_CHECKPOINTS: Final = "eddyline_store_checkpoints_total"
STORE_UPKEEP_STAGE: Final = "eddyline_store_upkeep_stage"
STORE_TOPICS: Final = "eddyline_store_topics"
STORE_SOURCES: Final = "eddyline_store_sources"
STORE_FOLLOWED_TOPICS: Final = "eddyline_store_followed_topics"
STORE_DROPPED_IDEMPOTENCY_KEYS: Final = "eddyline_store_dropped_idempotency_keys_total"
STORE_CORRUPT_PIECES: Final = "eddyline_store_corrupt_pieces_total"
STORE_DISK_FREE_BYTES: Final = "eddyline_store_disk_free_bytes"
STORE_DISK_FLOOR_BYTES: Final = "eddyline_store_disk_floor_bytes"
STORE_DISK_LOW: Final = "eddyline_store_disk_low"
STORE_MEMORY_BYTES: Final = "eddyline_store_memory_bytes"
STORE_RESIDENT_BYTES: Final = "eddyline_store_resident_bytes"
STORE_MEMORY_FULL: Final = "eddyline_store_memory_full"
STORE_RECOVERED_BYTES: Final = "eddyline_store_recovered_bytes"
STORE_TO_RECOVER_BYTES: Final = "eddyline_store_to_recover_bytes"
STORE_FORWARDED_CALLS: Final = "eddyline_store_forwarded_calls_total"
STORE_EXPORTED_SPANS: Final = "eddyline_store_exported_spans_total"
STORE_DROPPED_SPANS: Final = "eddyline_store_dropped_spans_total"
STORE_CERTIFICATE_EXPIRATION: Final = "eddyline_store_certificate_expiration_timestamp_seconds"

INGEST_READY: Final = "eddyline_ingest_ready"
INGEST_NATS_CONNECTED: Final = "eddyline_ingest_nats_connected"
INGEST_STORE_CONNECTED: Final = "eddyline_ingest_store_connected"
INGEST_LEASES: Final = "eddyline_ingest_leases"
INGEST_UNLISTED_SOURCES: Final = "eddyline_ingest_unlisted_sources"
INGEST_APPLY_SECONDS: Final = "eddyline_ingest_apply_seconds"
INGEST_VERIFICATIONS: Final = "eddyline_ingest_verifications_total"
INGEST_DRIFTED_KEYS: Final = "eddyline_ingest_drifted_keys_total"
INGEST_SOURCE_STATE: Final = "eddyline_ingest_source_state"
INGEST_SOURCE_STATE_SECONDS: Final = "eddyline_ingest_source_state_seconds"
INGEST_SOURCE_POSITION: Final = "eddyline_ingest_source_position_revision"
INGEST_SOURCE_LAG: Final = "eddyline_ingest_source_lag_revisions"
INGEST_SOURCE_LAG_SECONDS: Final = "eddyline_ingest_source_lag_seconds"
INGEST_SOURCE_REPORT_SECONDS: Final = "eddyline_ingest_source_report_seconds"
INGEST_SOURCE_DRIFTED_KEYS: Final = "eddyline_ingest_source_drifted_keys"
INGEST_SOURCE_LOSSY_SETTINGS: Final = "eddyline_ingest_source_lossy_settings"
INGEST_SOURCE_FILE_DRIFT: Final = "eddyline_ingest_source_file_drift"
INGEST_APPLIED_RECORDS: Final = "eddyline_ingest_applied_records_total"
INGEST_CONSUMERS: Final = "eddyline_ingest_consumers_total"
INGEST_RESYNCS: Final = "eddyline_ingest_resyncs_total"
INGEST_GAPS: Final = "eddyline_ingest_gaps_total"
INGEST_SYNTHETIC_DELETES: Final = "eddyline_ingest_synthetic_deletes_total"
INGEST_DEAD_LETTERS: Final = "eddyline_ingest_dead_letters_total"
INGEST_FORWARDED_CALLS: Final = "eddyline_ingest_forwarded_calls_total"
INGEST_EXPORTED_SPANS: Final = "eddyline_ingest_exported_spans_total"
INGEST_DROPPED_SPANS: Final = "eddyline_ingest_dropped_spans_total"
INGEST_CERTIFICATE_EXPIRATION: Final = "eddyline_ingest_certificate_expiration_timestamp_seconds"

DELIVERY_READY: Final = "eddyline_delivery_ready"
DELIVERY_STORE_CONNECTED: Final = "eddyline_delivery_store_connected"
DELIVERY_WATCHES: Final = "eddyline_delivery_watches"
DELIVERY_FOLLOWED_TOPICS: Final = "eddyline_delivery_followed_topics"
DELIVERY_DELIVERED_RECORDS: Final = "eddyline_delivery_delivered_records_total"
DELIVERY_DELIVERED_BYTES: Final = "eddyline_delivery_delivered_bytes_total"
DELIVERY_ENCODED_FRAMES: Final = "eddyline_delivery_encoded_frames_total"
DELIVERY_BUFFERED_BYTES: Final = "eddyline_delivery_buffered_bytes"
DELIVERY_CATCHUP_READS: Final = "eddyline_delivery_catchup_reads_total"
DELIVERY_LATENCY_SECONDS: Final = "eddyline_delivery_latency_seconds"
DELIVERY_LAG_RECORDS: Final = "eddyline_delivery_lag_records"
DELIVERY_LAG_SECONDS: Final = "eddyline_delivery_lag_seconds"
DELIVERY_PRESSURE: Final = "eddyline_delivery_pressure_ratio"
DELIVERY_PRESSURE_STEP: Final = "eddyline_delivery_pressure_step"
DELIVERY_READY_TOPICS: Final = "eddyline_delivery_ready_topics"
DELIVERY_SERVED_RECORDS: Final = "eddyline_delivery_served_records_total"
DELIVERY_TURNS: Final = "eddyline_delivery_turns_total"
DELIVERY_TURN_WAIT_SECONDS: Final = "eddyline_delivery_turn_wait_seconds_total"
DELIVERY_SCHEDULING_SECONDS: Final = "eddyline_delivery_scheduling_latency_seconds"
DELIVERY_LONGEST_WAIT_SECONDS: Final = "eddyline_delivery_longest_wait_seconds"
DELIVERY_QUEUED_BYTES: Final = "eddyline_delivery_queued_bytes"
DELIVERY_FORWARDED_CALLS: Final = "eddyline_delivery_forwarded_calls_total"
DELIVERY_EXPORTED_SPANS: Final = "eddyline_delivery_exported_spans_total"
DELIVERY_DROPPED_SPANS: Final = "eddyline_delivery_dropped_spans_total"
DELIVERY_CERTIFICATE_EXPIRATION: Final = "eddyline_delivery_certificate_expiration_timestamp_seconds"

LABEL_SHARD: Final = "shard"
LABEL_SOURCE: Final = "source"
LABEL_STATE: Final = "state"
LABEL_STAGE: Final = "stage"
LABEL_REASON: Final = "reason"
LABEL_BAND: Final = "band"
LABEL_STEP: Final = "step"
LABEL_OUTCOME: Final = "outcome"
"""Every label there is. Each has a bound: sources by what a replica exports, the others are closed sets. Topics are none."""

SPAN_INGEST_RECEIVE: Final = "ingest.receive"
SPAN_INGEST_APPLY: Final = "ingest.apply"
SPAN_STORE_COMMIT: Final = "store.commit"
SPAN_DELIVERY_RECEIVE: Final = "delivery.receive"
SPAN_DELIVERY_SEND: Final = "delivery.send"
SPAN_KINDS: Final = {
    SPAN_INGEST_RECEIVE: "CONSUMER",
    SPAN_INGEST_APPLY: "CLIENT",
    SPAN_STORE_COMMIT: "SERVER",
    SPAN_DELIVERY_RECEIVE: "CONSUMER",
    SPAN_DELIVERY_SEND: "PRODUCER",
}
"""As OpenTelemetry's conventions of messaging and RPC have them: what a message or frame comes by is a CONSUMER."""
EVENT_DURABLE: Final = "durable"
ATTRIBUTE_SOURCE: Final = "eddyline.source"
ATTRIBUTE_REVISION: Final = "eddyline.revision"
ATTRIBUTE_TOPIC: Final = "eddyline.topic"
ATTRIBUTE_EPOCH: Final = "eddyline.epoch"
ATTRIBUTE_FIRST_SEQ: Final = "eddyline.first_seq"
ATTRIBUTE_SEQ: Final = "eddyline.seq"
ATTRIBUTE_RECORDS: Final = "eddyline.records"

_FIELDS: Final = "fields"


def fields(**values: str | float | bool | bytes | None) -> dict[str, object]:
    """Fields of a log event, for `extra`. Bytes are shown in hex."""
    return {_FIELDS: {key: value.hex() if isinstance(value, bytes) else value for key, value in values.items()}}


def set_up_logging(role: str, *, level: str, log_format: str, stream: TextIO | None = None) -> None:
    """Send the process's log to `stream` (None = stderr), as `plain` lines or one `json` object a line.

    Call it once, in `__main__`. `level` and `log_format` are those that `eddyline.core.runtime.settings` takes.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter(role) if log_format == "json" else PlainFormatter(role))
    logging.basicConfig(level=level, handlers=[handler], force=True)


ROLE_COLUMNS: Final = len("delivery")


class PlainFormatter(logging.Formatter):
    """`store    | 2026-01-31T12:00:00.000Z INFO lease won source=orders fence=3`.

    The role comes first, where several share a terminal.
    """

    def __init__(self, role: str) -> None:
        super().__init__()
        self._prefix = f"{role:<{ROLE_COLUMNS}} |"

    def format(self, record: logging.LogRecord) -> str:
        parts = [self._prefix, _time_of(record), record.levelname, record.getMessage()]
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
