"""Bytes as people read them: keys, prefixes and values in messages, logs and tables."""

from __future__ import annotations

import json
import re
from typing import Final

_NOT_PLAIN: Final = re.compile(r"[^ -~]+")


def escaped(text: str, *, keep: str = "") -> str:
    """A text in which every character that is not printable, but those of `keep`, is escaped as in JSON.

    A terminal obeys control characters (C0 and C1), and shows format characters such as U+202E by moving others. Halves of
    surrogate pairs, which no encoding has, are escaped too. A JSON document stays the same document.
    """

    def plain(run: re.Match[str]) -> str:
        if run[0].isprintable():
            return run[0]
        return "".join(char if char.isprintable() or char in keep else json.dumps(char)[1:-1] for char in run[0])

    return text if text.isprintable() else _NOT_PLAIN.sub(plain, text)


def printable(value: bytes | None, width: int = 0) -> str:
    """Bytes for people: text as it is, or in quotes and escaped where it is not printable or would be taken for something
    else; what is not UTF-8 as hex. Different bytes look different; cut to `width` with an ellipsis (0 = whole)."""
    if value is None:
        return "-"
    try:
        text = _shown_text(value.decode("utf-8"))
    except UnicodeDecodeError:
        text = "0x" + value.hex()
    return text if not width or len(text) <= width else text[: width - 1] + "…"


def _shown_text(text: str) -> str:
    """A text as it is, or quoted as in JSON where it is not printable, looks like hex or nothing, or like such a quote."""
    if text.isprintable() and text != "-" and not text.startswith("0x") and not _looks_quoted(text):
        return text
    return escaped(json.dumps(text, ensure_ascii=False))


def _looks_quoted(text: str) -> bool:
    """Whether another text would be shown so."""
    if not text.startswith('"'):
        return False
    try:
        inner = json.loads(text)
    except ValueError:
        return False
    return isinstance(inner, str) and _shown_text(inner) == text
