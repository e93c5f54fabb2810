"""Tables and paragraphs fitted to a terminal's width."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from eddyline.cli.terminal.output import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTE_INDENT: Final = "    "


def fitted(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[Sequence[str]],
    *,
    width: int,
    optional: Sequence[str] = (),
) -> list[str]:
    """A table within `width` columns, the notes of each row below it.

    Columns of `optional` are left out, in that order, until it fits. A table that does not fit without them either is
    printed row by row, a cell a line.
    """
    left_out = [header.index(name) for name in optional]
    kept = list(range(len(header)))
    while True:
        lines = aligned([[row[at] for at in kept] for row in (header, *rows)])
        if max(map(len, lines)) <= width:
            break
        if not left_out:
            return _stacked(header, rows, notes, kept, width)
        kept.remove(left_out.pop(0))
    said = lines[:1]
    for line, row_notes in zip(lines[1:], notes, strict=True):
        said.append(line)
        for note in row_notes:
            said += wrapped(note, width=width, indent=NOTE_INDENT)
    return said


def wrapped(text: str, *, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """A text as lines of at most `width` columns; a word that is longer stands alone and whole, so that it can be copied."""
    after = indent if hanging is None else hanging
    lines = textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=after, break_long_words=False, break_on_hyphens=False
    )
    return lines or [indent.rstrip()]


def _stacked(
    header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[Sequence[str]], kept: list[int], width: int
) -> list[str]:
    said: list[str] = []
    for row, row_notes in zip(rows, notes, strict=True):
        said.append(row[kept[0]])
        label = max(len(header[at]) for at in kept[1:])
        for at in kept[1:]:
            first = f"{NOTE_INDENT}{header[at]:<{label}}  "
            said += wrapped(row[at], width=width, indent=first, hanging=" " * len(first))
        for note in row_notes:
            said += wrapped(note, width=width, indent=NOTE_INDENT)
    return said
