"""Printable form of bytes and texts: keys, prefixes and values in messages, logs and tables."""

from __future__ import annotations

import json
import re
from typing import Final

_NOT_PLAIN: Final = re.compile(r"[^ -~]+")


def escaped(text: str, *, keep: str = "") -> str:
    """Escape every character that is not printable as in JSON, except those of `keep`.

    A terminal executes control characters (C0 and C1), and format characters such as U+202E move others. Halves of
    surrogate pairs, which no encoding can write, are escaped too. A JSON document keeps its meaning.
    """

    def plain(run: re.Match[str]) -> str:
        if run[0].isprintable():
            return run[0]
        return "".join(char if char.isprintable() or char in keep else json.dumps(char)[1:-1] for char in run[0])

    return text if text.isprintable() else _NOT_PLAIN.sub(plain, text)


def printable(value: bytes | None, width: int = 0) -> str:
    """Return bytes in a form for people: UTF-8 as text, quoted and escaped if it is not printable or ambiguous; others as
    hex.

    Different bytes have different forms. The form is cut to `width` characters with an ellipsis; 0 = not cut.
    """
    if value is None:
        return "-"
    try:
        text = _plain_or_quoted(value.decode("utf-8"))
    except UnicodeDecodeError:
        text = "0x" + value.hex()
    return text if not width or len(text) <= width else text[: width - 1] + "…"


def _plain_or_quoted(text: str) -> str:
    """Return a text as it is, or quoted as JSON if it is not printable or looks like hex, `-` or a quoted text."""
    if text.isprintable() and text != "-" and not text.startswith("0x") and not _looks_quoted(text):
        return text
    return escaped(json.dumps(text, ensure_ascii=False))


def _looks_quoted(text: str) -> bool:
    """Return True if the text is the quoted form of another text."""
    if not text.startswith('"'):
        return False
    try:
        inner = json.loads(text)
    except ValueError:
        return False
    return isinstance(inner, str) and _plain_or_quoted(inner) == text
