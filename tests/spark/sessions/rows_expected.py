"""The rows that Spark must return for records as the client library reads them: the model for reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.records.record import Op, Record, effective_version

if TYPE_CHECKING:
    from collections.abc import Iterable


def expected_rows(topic: str, records: Iterable[Record]) -> list[dict[str, object]]:
    """Rows as `collect` of times in microseconds gives them, each a dict by column."""
    return [expected_row(topic, record) for record in records]


def expected_row(topic: str, record: Record) -> dict[str, object]:
    known = record.source_ts_ns or None
    return {
        "topic": topic,
        "seq": record.seq,
        "ts": record.ts_ms * 1_000,
        "source_ts": None if known is None else known // 1_000,
        "source_ts_ns": known,
        "op": Op(record.op).name,
        "key": record.key,
        "key_text": text_of(record.key),
        "tag": record.tag,
        "node": record.node,
        "meta": [{"name": entry.name, "value": entry.value} for entry in record.meta],
        "data": record.data,
        "version": effective_version(record.version, record.seq),
    }


def text_of(key: bytes | None) -> str | None:
    if key is None:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None
