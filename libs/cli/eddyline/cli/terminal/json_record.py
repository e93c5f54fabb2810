"""A record as a JSON object, the way in: what `eddyline.cli.terminal.output` prints, and what a person would write.

    {"op": "PUT", "key": "k", "data": "v", "tag": "t", "node": "n", "meta": {"name": "value"}}

All fields may be left out. `key_base64` and `data_base64` stand for bytes that are no text; `meta` is also taken as it is
printed, `[{"name": "n", "value": "v"}]`, with `value_base64`. Fields that the store sets (`seq`, `ts_ms`, …) are ignored, so
that the output of `read`, `get` and `watch` can be appended again; any other unknown field is refused by its name.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Final

from eddyline.cli.errors import CommandError
from eddyline.core.records.record import MetaEntry, Op
from eddyline.core.runtime.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.core.records.record import Record

OPS: Final = {"append": Op.APPEND, "put": Op.PUT, "delete": Op.DELETE, "purge": Op.PURGE}
_TAKEN: Final = frozenset({"op", "key", "key_base64", "data", "data_base64", "tag", "node", "meta"})
_PASSED_OVER: Final = frozenset({"seq", "ts_ms", "source_ts_ns", "version", "topic", "in_snapshot", "fold_seq"})
_EXPECTED: Final = 'expected: {"key": "k", "data": "v"}; `eddyline append --help` has all fields'
_SHOWN: Final = 100
"""Characters of a wrong line that are shown."""


class _WrongError(Exception):
    """The fault of an object, as text."""


def record_from_json(text: bytes, template: Record) -> Record:
    """A record; what the object leaves out is the template's.

    Raises:
        CommandError: not such an object.
    """
    try:
        return _record(_object_of(text), template)
    except _WrongError as wrong:
        shown = text[:_SHOWN].decode("utf-8", "replace") + ("…" if len(text) > _SHOWN else "")
        raise CommandError(f"not a JSON record: {wrong}: {shown}", _EXPECTED) from None


def _object_of(text: bytes) -> dict[str, object]:
    try:
        # As text: of bytes json guesses the encoding, and takes some that are no UTF-8 for UTF-16.
        fields = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _WrongError(str(error)) from None
    if not isinstance(fields, dict):
        raise _WrongError("not an object")
    if "gap" in fields:
        raise _WrongError("a gap, not a record")
    if "event" in fields:
        raise _WrongError("an event of a watch, not a record")
    unknown = sorted(fields.keys() - _TAKEN - _PASSED_OVER)
    if unknown:
        question = did_you_mean(unknown[0], _TAKEN)
        meant = f" ({question})" if question else ""
        raise _WrongError(f"unknown field {', '.join(map(repr, unknown))}{meant}")
    return fields


def _record(fields: Mapping[str, object], template: Record) -> Record:
    key = _bytes_of(fields, "key")
    return template._replace(
        op=_op_of(fields["op"]) if "op" in fields else template.op,
        key=template.key if key is None else key,
        data=_bytes_of(fields, "data"),
        tag=_text_of(fields, "tag", template.tag),
        node=_text_of(fields, "node", template.node),
        meta=_meta_of(fields.get("meta")),
    )


def _op_of(value: object) -> Op:
    op = OPS.get(value.lower()) if isinstance(value, str) else None
    if op is None:
        raise _WrongError(f"op {value!r} is none of {', '.join(name.upper() for name in OPS)}")
    return op


def _meta_of(value: object) -> tuple[MetaEntry, ...]:
    if value is None:
        return ()
    if isinstance(value, dict):
        # Its names are the user's: one that ends with `_base64` is no other field's bytes.
        return tuple(MetaEntry(_utf8(name), (_text_of(value, name, None) or "").encode()) for name in value)
    if not isinstance(value, list):
        raise _WrongError('meta is neither {"name": "value"} nor [{"name": "n", "value": "v"}]')
    entries: list[MetaEntry] = []
    for entry in value:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise _WrongError('an entry of meta is {"name": "n", "value": "v"}')
        if entry.keys() - {"name", "value", "value_base64"}:
            raise _WrongError("an entry of meta has name, and value or value_base64")
        entries.append(MetaEntry(_utf8(entry["name"]), _bytes_of(entry, "value") or b""))
    return tuple(entries)


def _text_of(fields: Mapping[str, object], name: str, default: str | None) -> str | None:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise _WrongError(f"{name} is not a string")
    return _utf8(value, name)


def _utf8(text: str, what: str = "a name of meta") -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _WrongError(f"{what} has half a surrogate pair") from None
    return text


def _bytes_of(fields: Mapping[str, object], name: str) -> bytes | None:
    text, encoded = fields.get(name), fields.get(name + "_base64")
    if text is not None and encoded is not None:
        raise _WrongError(f"{name} and {name}_base64 are both given")
    try:
        if encoded is not None:
            return base64.b64decode(str(encoded), validate=True)
        if text is None:
            return None
        if not isinstance(text, str):
            raise _WrongError(f"{name} is not a string" + ("; JSON data goes in as a string" if name == "data" else ""))
        return text.encode()
    except UnicodeEncodeError:
        raise _WrongError(f"{name} has half a surrogate pair") from None
    except ValueError:
        raise _WrongError(f"{name}_base64 is not base64") from None
