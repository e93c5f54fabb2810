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
_TAKEN: Final = ("key", "key_base64", "data", "data_base64", "op", "tag", "node", "meta")
_PASSED_OVER: Final = frozenset({"seq", "ts_ms", "source_ts_ns", "version", "topic", "in_snapshot", "fold_seq"})
_EXPECTED: Final = 'expected: {"key": "k", "data": "v"}; `eddyline append --help` has all fields'
_JSON_FAULTS: Final = {
    "Expecting value": "a value is missing here, or a text without its double quotes",
    "Expecting property name enclosed in double quotes": "a field name in double quotes is missing here",
    "Illegal trailing comma before end of object": "a comma before the closing brace",
    "Expecting ':' delimiter": "a colon is missing here",
    "Expecting ',' delimiter": "a comma or a closing bracket is missing here",
    "Extra data": "more text after the end of the object",
    "Unterminated string starting at": "the text that begins here has no closing quote",
    "Invalid control character at": "a control character in a text; write it as an escape, e.g. \\n",
    "Invalid \\escape": "an unknown escape; write a backslash as \\\\",
    "Invalid \\uXXXX escape": "an escape \\u without four hex digits",
}
"""Messages of the json module in plain words."""
_SHOWN: Final = 100
"""Characters of a wrong line that are shown."""


class _WrongError(Exception):
    """The fault of an object, as text. `line` and `column` = its place in the text, from 1; 0 = none."""

    def __init__(self, fault: str, *, line: int = 0, column: int = 0) -> None:
        super().__init__(fault)
        self.line = line
        self.column = column


def record_from_json(text: bytes, template: Record, *, line: int = 0) -> Record:
    """A record; what the object leaves out is the template's. `line` = the text's number in the input; 0 = none.

    Raises:
        CommandError: not such an object.
    """
    try:
        return _record(_object_of(text), template)
    except _WrongError as wrong:
        shown = text[:_SHOWN].decode("utf-8", "replace") + ("…" if len(text) > _SHOWN else "")
        numbers = {"line": line or wrong.line, "column": wrong.column}
        place = ", ".join(f"{name} {number}" for name, number in numbers.items() if number)
        raise CommandError(f"{place}{': ' if place else ''}{wrong}: {shown}", _EXPECTED) from None


def _object_of(text: bytes) -> dict[str, object]:
    try:
        # As text: of bytes json guesses the encoding, and takes some that are no UTF-8 for UTF-16.
        fields = json.loads(text.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        fault = _JSON_FAULTS.get(error.msg, error.msg)
        raise _WrongError(f"not JSON: {fault}", line=error.lineno if b"\n" in text else 0, column=error.colno) from None
    except UnicodeDecodeError as error:
        raise _WrongError(f"not UTF-8 at byte {error.start + 1}") from None
    except RecursionError:
        raise _WrongError("not a JSON record: its lists or objects are nested too deeply") from None
    except ValueError as error:
        raise _WrongError(f"not a JSON record: {error}") from None
    if not isinstance(fields, dict):
        raise _WrongError("not a JSON record: not an object")
    if "gap" in fields:
        raise _WrongError("not a JSON record: a gap")
    if "event" in fields:
        raise _WrongError("not a JSON record: an event of a watch")
    unknown = sorted(fields.keys() - {*_TAKEN} - _PASSED_OVER)
    if unknown:
        question = did_you_mean(unknown[0], _TAKEN)
        meant = f" ({question})" if question else ""
        named = f"unknown field{'s' * (len(unknown) > 1)} {', '.join(map(repr, unknown))}{meant}"
        raise _WrongError(f"{named}; fields are {', '.join(_TAKEN)}")
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
