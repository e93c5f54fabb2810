"""The names that a misspelt one may have meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

CANDIDATES_MAX: Final = 3
LIKENESS_MIN: Final = 0.65
"""difflib: 0.6, at which `crate` may mean `erase` too."""


def did_you_mean(word: str, names: Iterable[str], *, prefix: str = "") -> str:
    """Ask for the names that are like the word: `did you mean a or b?`; empty = none is.

    `prefix` is put before each of them: what all names begin with makes no two of them alike.
    """
    # Here, because it is needed once something is wrong.
    from difflib import get_close_matches

    return suggestion([prefix + name for name in get_close_matches(word, list(names), CANDIDATES_MAX, LIKENESS_MIN)])


def suggestion(names: list[str]) -> str:
    """The question for these names; empty = there are none."""
    return f"did you mean {' or '.join(names)}?" if names else ""
