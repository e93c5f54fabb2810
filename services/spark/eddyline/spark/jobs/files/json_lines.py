"""A line of JSON as a record: the form that `eddyline read -o json` prints and `eddyline append --json` takes.

    {"op": "PUT", "key": "k", "data": "v", "tag": "t", "node": "n", "source_ts_ns": 1, "meta": {"name": "value"}}

All fields may be left out. `key_base64` and `data_base64` stand for bytes that are no text; `meta` is also
`[{"name": "n", "value": "v"}]`, with `value_base64`. Fields that the store sets are ignored; any other unknown field is an
error.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Final

from eddyline.core.records.record import MetaEntry, Op, Record

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPS: Final = {"APPEND": Op.APPEND, "PUT": Op.PUT, "DELETE": Op.DELETE, "PURGE": Op.PURGE}
_TAKEN: Final = frozenset({"op", "key", "key_base64", "data", "data_base64", "tag", "node", "source_ts_ns", "meta"})
_PASSED_OVER: Final = frozenset({"seq", "ts_ms", "version", "topic", "in_snapshot", "fold_seq"})


class NotARecordError(Exception):
    """The fault of a line, as text."""


def record_of(line: bytes, default_op: Op) -> Record:
    """The record of a line.

    Raises:
        NotARecordError: it has none.
    """
    try:
        # As text: of bytes json guesses the encoding, and takes some that are no UTF-8 for UTF-16.
        fields = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise NotARecordError(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise NotARecordError("not an object")
    if "gap" in fields:
        raise NotARecordError("a gap, not a record")
    if unknown := sorted(fields.keys() - _TAKEN - _PASSED_OVER):
        raise NotARecordError(f"unknown field {', '.join(map(repr, unknown))}")
    return Record(
        op=_op(fields.get("op"), default_op),
        key=_bytes(fields, "key"),
        data=_bytes(fields, "data"),
        tag=_text(fields, "tag"),
        node=_text(fields, "node"),
        source_ts_ns=_time(fields.get("source_ts_ns")),
        meta=_meta(fields.get("meta")),
    )


def _op(value: object, default: Op) -> Op:
    if value is None:
        return default
    found = _OPS.get(value.upper()) if isinstance(value, str) else None
    if found is None:
        raise NotARecordError(f"op {value!r} is none of {', '.join(_OPS)}")
    return found


def _time(value: object) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
        raise NotARecordError("source_ts_ns is not a whole number of 64 bits")
    return value


def _meta(value: object) -> tuple[MetaEntry, ...]:
    if value is None:
        return ()
    if isinstance(value, dict):
        # Its names are the user's: one that ends with `_base64` is no other field's bytes.
        return tuple(MetaEntry(_utf8(name, "a name of meta"), (_text(value, name) or "").encode()) for name in value)
    entries: list[MetaEntry] = []
    for entry in value if isinstance(value, list) else [None]:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise NotARecordError('meta is neither {"name": "value"} nor [{"name": "n", "value": "v"}]')
        if entry.keys() - {"name", "value", "value_base64"}:
            raise NotARecordError("an entry of meta has name, and value or value_base64")
        entries.append(MetaEntry(_utf8(entry["name"], "a name of meta"), _bytes(entry, "value") or b""))
    return tuple(entries)


def _text(fields: Mapping[str, object], name: str) -> str | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise NotARecordError(f"{name} is not a string")
    return _utf8(value, name)


def _utf8(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotARecordError(f"{what} has half a surrogate pair") from None
    return text


def _bytes(fields: Mapping[str, object], name: str) -> bytes | None:
    text, encoded = fields.get(name), fields.get(name + "_base64")
    if text is not None and encoded is not None:
        raise NotARecordError(f"{name} and {name}_base64 are both given")
    if encoded is None:
        whole = _text(fields, name)
        return None if whole is None else whole.encode()
    try:
        return base64.b64decode(str(encoded), validate=True)
    except ValueError:
        raise NotARecordError(f"{name}_base64 is not base64") from None
