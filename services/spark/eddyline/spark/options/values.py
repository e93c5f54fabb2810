"""How one option's text becomes a value. Every refusal names the option as the documents spell it, and what it takes."""

from __future__ import annotations

import base64
import binascii
import difflib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from eddyline.core.errors import InvalidArgument
from eddyline.core.records.record import Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BINARY_PREFIX: Final = "base64:"
"""Begins a key prefix that is not text. One that begins so as text is given in base64 itself."""
LIST_MAX: Final = 1_000
"""The contract's most values of one field of a filter; topics as well."""
SEQ_MAX: Final = (1 << 63) - 2
"""Elsewhere in Eddyline 64 bits without sign: Spark has none, and an exclusive bound is one more."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OPS: Final = {op.name: op for op in (Op.APPEND, Op.PUT, Op.DELETE, Op.PURGE)}

Choice = TypeVar("Choice", bound=str)
SeqBound = int | Literal["earliest", "latest"]


def refused(option: str, why: str) -> InvalidArgument:
    """The error of one option."""
    return InvalidArgument(f"option {option}: {why}", field=option)


def unknown(option: str, known: Iterable[str], what: str) -> InvalidArgument:
    """The error of an option that a read or a write (`what`) does not know, with the one that was meant, if it is near.

    Spark gives names in lower case as a rule, so the user's own spelling is not known.
    """
    spelt = {name.lower(): name for name in known}
    near = difflib.get_close_matches(option.lower(), spelt, n=1)
    hint = f" did you mean {spelt[near[0]]}?" if near else ""
    return refused(option, f"it is unknown;{hint} a {what} has {', '.join(sorted(spelt.values()))}")


def choice(option: str, text: str, choices: Sequence[Choice]) -> Choice:
    """One of `choices`, in any case.

    Raises:
        InvalidArgument: none of them.
    """
    for known in choices:
        if known.lower() == text.strip().lower():
            return known
    raise refused(option, f"{text!r} is not one of {', '.join(choices)}")


def whole_number(option: str, text: str, low: int, high: int) -> int:
    """A number from `low` to `high`, both inclusive.

    Raises:
        InvalidArgument: it is none, or out of its bounds.
    """
    stripped = text.strip()
    digits = stripped.removeprefix("-")
    number = int(stripped) if digits.isascii() and digits.isdecimal() and len(digits) <= 20 else None
    if number is None or not low <= number <= high:
        raise refused(option, f"{text!r} is not a whole number from {low} to {high}")
    return number


def texts(option: str, text: str) -> tuple[str, ...]:
    """Several values: with commas, or as a JSON list where one of them has a comma or a space at its edge.

    Raises:
        InvalidArgument: no list, an empty one, or more than 1 000 values.
    """
    if text.lstrip().startswith("["):
        try:
            values = json.loads(text)
        except ValueError:
            raise refused(option, f"{_cut(text)} is not a JSON list") from None
        if not all(isinstance(value, str) for value in values):
            raise refused(option, "its JSON list must hold strings only")
    else:
        values = [part.strip() for part in text.split(",") if part.strip()]
    if not values or len(values) > LIST_MAX:
        raise refused(option, f"it takes 1 to {LIST_MAX} values, and has {len(values)}")
    return tuple(dict.fromkeys(values))


def key_prefixes(option: str, text: str) -> tuple[bytes, ...]:
    """Key prefixes: text, or `base64:` and bytes.

    Raises:
        InvalidArgument: as `texts`, or what follows `base64:` is none.
    """
    found = []
    for value in texts(option, text):
        if not value.startswith(BINARY_PREFIX):
            found.append(value.encode())
            continue
        try:
            found.append(base64.b64decode(value.removeprefix(BINARY_PREFIX), validate=True))
        except binascii.Error:
            raise refused(option, f"{_cut(value)} is not base64 after {BINARY_PREFIX!r}") from None
    return tuple(found)


def ops(option: str, text: str) -> tuple[int, ...]:
    """Ops by name. GAP is none of them: losses are reported as `onGap` says.

    Raises:
        InvalidArgument: as `texts`, or an unknown name.
    """
    return tuple(int(_OPS[choice(option, name, tuple(_OPS))]) for name in texts(option, text))


def time_ns(option: str, text: str) -> int:
    """A point in time, in nanoseconds since the Unix epoch: ISO 8601 with its zone, or milliseconds since then.

    Raises:
        InvalidArgument: neither, or ISO 8601 without a zone.
    """
    stripped = text.strip()
    if stripped.removeprefix("-").isdecimal():
        return whole_number(option, stripped, -(10**13), 10**13 - 1) * 1_000_000
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        raise refused(
            option, f"{text!r} is neither ISO 8601 with a zone (2026-01-31T12:00:00Z) nor milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        raise refused(option, f"{text!r} has no zone: add Z or an offset like +02:00")
    since = moment - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000


def seqs(option: str, text: str, words: Sequence[Literal["earliest", "latest"]]) -> SeqBound | dict[str, SeqBound]:
    """A seq, or one of `words`, for all topics; or a JSON object of these by topic.

    Raises:
        InvalidArgument: none of these.
    """
    if not text.lstrip().startswith("{"):
        return _seq(option, text, words)
    try:
        by_topic: Mapping[str, object] = json.loads(text)
    except ValueError:
        raise refused(option, f"{_cut(text)} is not a JSON object of seqs by topic") from None
    return {topic: _seq(option, str(value), words) for topic, value in by_topic.items()}


def _seq(option: str, text: str, words: Sequence[Literal["earliest", "latest"]]) -> SeqBound:
    for word in words:
        if text.strip().lower() == word:
            return word
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdecimal() and 1 <= int(stripped[:20]) <= SEQ_MAX):
        raise refused(option, f"{text!r} is neither a seq, from 1 on, nor one of {', '.join(words)}")
    return int(stripped)


def _cut(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:100] + "…")
