"""Suggestions for misspelt names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

CANDIDATES_MAX: Final = 3
LIKENESS_MIN: Final = 0.65
"""difflib: 0.6, at which `crate` also suggests `erase`."""


def did_you_mean(word: str, names: Iterable[str], *, prefix: str = "") -> str:
    """Return `did you mean a or b?` with the names most like the word; empty = none is like it.

    `prefix` is put before each name, and not compared: a common beginning makes any two names alike.
    """
    # Imported here, since only errors need it.
    from difflib import get_close_matches

    return suggestion([prefix + name for name in get_close_matches(word, list(names), CANDIDATES_MAX, LIKENESS_MIN)])


def suggestion(names: list[str]) -> str:
    """Return the question for these names; empty = no names."""
    return f"did you mean {' or '.join(names)}?" if names else ""
