"""Filters of a source: key prefixes, or subjects as NATS writes them with `*` and `>`.

Ingest filters, not the server: a consumer that brings every revision reveals which are missing, while a filtered one
cannot. A message that matches several filters is copied once.
Threading: immutable.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import InvalidArgument

if TYPE_CHECKING:
    from eddyline.core.model.source import SourceDefinition

SUBJECT_BYTES_MAX: Final = 255
PREFIX_BYTES_MAX: Final = 1024
FILTERS_SHOWN: Final = 3
FILTER_CHARS_SHOWN: Final = 60
_TOKEN: Final = re.compile(r"[^\s.*>]+")


class Filter:
    """Matches keys of a bucket's messages, or subjects of a stream's."""

    def __init__(self, definition: SourceDefinition) -> None:
        self._prefixes = definition.key_prefixes
        patterns = [_pattern(subject) for subject in definition.subjects]
        self._subjects = re.compile(b"|".join(patterns)) if patterns else None
        self.matches_all = not self._prefixes and self._subjects is None
        """True = the source has no filter."""

    def matches(self, key: bytes) -> bool:
        """Whether messages with this key are copied."""
        if self.matches_all or key.startswith(self._prefixes):
            return True
        return self._subjects is not None and self._subjects.fullmatch(key) is not None


def describe_source(definition: SourceDefinition) -> str:
    """A source's name and its first filters, for error messages."""
    filters = [prefix.decode(errors="backslashreplace") + "*" for prefix in definition.key_prefixes]
    filters += definition.subjects
    first_filters = ", ".join(one[:FILTER_CHARS_SHOWN] for one in filters[:FILTERS_SHOWN]) or "everything"
    more = len(filters) - FILTERS_SHOWN
    return f"{definition.name} copies {first_filters}" + (f" and {more} more" if more > 0 else "")


def check_filters(definition: SourceDefinition) -> None:
    """Raise InvalidArgument for a filter that no key or subject can match."""
    for prefix in definition.key_prefixes:
        if not 1 <= len(prefix) <= PREFIX_BYTES_MAX:
            raise InvalidArgument(
                f"a key prefix has 1 to {PREFIX_BYTES_MAX} bytes, not {len(prefix)}",
                field="key_prefixes",
                prefixBytesMax=PREFIX_BYTES_MAX,
            )
    for subject in definition.subjects:
        tokens = subject.split(".")
        fits = len(subject.encode()) <= SUBJECT_BYTES_MAX and all(
            token == "*" or (token == ">" and index == len(tokens) - 1) or _TOKEN.fullmatch(token)
            for index, token in enumerate(tokens)
        )
        if not fits:
            raise InvalidArgument(
                f"{subject[:SUBJECT_BYTES_MAX]!r} is not a subject: tokens between dots, `*` = any token, `>` = the rest",
                field="subjects",
                subjectBytesMax=SUBJECT_BYTES_MAX,
            )


def _pattern(subject: str) -> bytes:
    """The subject as a regular expression over bytes. `>` matches at least one token."""
    parts = {"*": rb"[^.]+", ">": rb"(?s:.+)"}
    return rb"\.".join(parts.get(token) or re.escape(token.encode()) for token in subject.split("."))
