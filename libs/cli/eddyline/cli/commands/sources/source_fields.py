"""A source as a JSON object."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eddyline.cli.terminal.output import Json
    from eddyline.client.admin.sources import Source


def source_fields(source: Source) -> dict[str, Json]:
    """A source as a JSON object."""
    return {
        "name": source.definition.name,
        "bucket": source.definition.bucket,
        "stream": source.definition.stream,
        "topic": source.definition.topic,
        "key_prefixes": [_prefix(prefix) for prefix in source.definition.key_prefixes],
        "subjects": list(source.definition.subjects),
        "on_expired": source.definition.on_expired,
        "on_recreated": source.definition.on_recreated,
        "dead_letter_topic": source.definition.dead_letter_topic,
        "state": source.status,
        "reason": source.reason,
        "position_revision": source.position_revision,
        "last_revision": source.last_revision,
        "lag": source.lag,
        "holder": source.holder,
        "reported_ms": source.reported_ms,
        "head_seq": source.head_seq,
        "paused": source.paused,
        "resync_pending": source.resync_pending,
        "epoch": source.epoch,
        "state_ms": source.detail.state_ms,
        "decision": source.detail.decision,
        "decision_ms": source.detail.decision_ms,
        "gap_count": source.gap_count,
        "gap_ms": source.gap_ms,
        "changed_ms": source.changed_ms,
        "revisions_per_s": source.detail.revisions_per_s,
        "remaining_ms": source.detail.remaining_ms,
        "drift_count": source.detail.drift_count,
        "verified_ms": source.detail.verified_ms,
        "file_drift": source.detail.file_drift,
        "warnings": list(source.detail.warnings),
        "from_store": source.from_store,
    }


def _prefix(prefix: bytes) -> Json:
    """A prefix as text, or as `{"base64": …}` where it is not UTF-8."""
    try:
        return prefix.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(prefix).decode("ascii")}
