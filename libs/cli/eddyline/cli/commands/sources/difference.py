"""Keys that differ between bucket and fold, as people read them: a few examples, in words, below the sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.runtime.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.client.admin.source_check import Difference

EXAMPLES: Final = 10
"""Shown to people unless they ask for more; programs get 100."""
_WORDS: Final = {
    "MISSING": "only in the bucket",
    "SURPLUS": "only in the fold",
    "VALUE": "differs",
    "DEAD_LETTER": "dead letter",
}
_WORD_CHARS: Final = max(map(len, _WORDS.values()))


def listed(limit: int, *, is_json: bool) -> int:
    """The number of differences to request; `limit` is the argument, 0 = not given."""
    return limit or (0 if is_json else EXAMPLES)


def example_lines(differences: Sequence[Difference], count: int, *, still: bool = False) -> list[str]:
    """A line a difference, and one for those that are not listed of `count`."""
    lines = [f"  {'still ' if still else ''}{_line(one)}" for one in differences]
    more = count - len(differences)
    if more > 0:
        lines.append(f"  and {more} more: `--limit N` lists N of them")
    return lines


def kinds_text(missing: int, surplus: int, value: int) -> str:
    """How keys differ: "2 only in the bucket, 1 only in the fold"."""
    counts = ((missing, "only in the bucket"), (surplus, "only in the fold"), (value, "with another value"))
    return ", ".join(f"{count} {words}" for count, words in counts if count)


def _line(one: Difference) -> str:
    words = _WORDS.get(one.kind, one.kind)
    sides = (("bucket", one.bucket_revision), ("fold", one.fold_revision))
    revisions = ", ".join(f"{side} revision {revision}" for side, revision in sides if revision)
    return f"{words:<{_WORD_CHARS}}  {printable(one.key)}  {revisions}".rstrip()
