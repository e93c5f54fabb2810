"""Hints for options that a verb does not have: the option of that meaning, or the positional argument."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_SYNONYMS: Final = {
    "count": ("--limit",),
    "filter": ("--key-prefix", "--tag"),
    "follow": ("--follow",),
    "format": ("--output",),
    "from": ("--after", "--start"),
    "from-beginning": ("--start",),
    "head": ("--limit",),
    "host": ("--cluster",),
    "max": ("--limit",),
    "max-messages": ("--limit",),
    "n": ("--limit",),
    "offset": ("--after",),
    "server": ("--cluster",),
    "address": ("--cluster",),
    "bootstrap-server": ("--cluster",),
    "seq": ("--at-seq", "--after"),
    "since": ("--after", "--at-time"),
    "start": ("--after",),
    "tail": ("--follow", "--start"),
    "type": ("--kind",),
    "at": ("--at-time", "--at-seq"),
    "retention": ("--ttl", "--cap-bytes"),
    "max-age": ("--ttl",),
    "max-bytes": ("--cap-bytes",),
    "max-size": ("--cap-bytes",),
}
"""Options as other tools have them, and ours."""
_POSITIONALS: Final = {
    "TOPIC": ("name", "stream"),
    "NAME": ("topic", "source", "stream"),
    "VALUE": ("data", "message", "payload", "body"),
    "BUCKET": ("name",),
    "SOURCE": ("name",),
    "PREFIX": ("key-prefix", "name"),
}
"""Positional arguments by their metavar, and the options that people try for them; its own name is always one."""


def option_hint(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """Return a hint for the first word that is an option which the verb does not have; empty = none is known."""
    known = parser._option_string_actions
    for index, word in enumerate(words):
        if word == "--":
            return ""
        flag, has_value, value = word.partition("=")
        if not flag.startswith("--") or flag in known:
            continue
        action = _positional_of(parser, flag)
        if action is not None:
            given = value if has_value else next(iter(words[index + 1 :]), "")
            others = [*words[:index], *words[index + (1 if has_value else 2) :]]
            return f"{action.metavar} is positional: `{_corrected(parser, action, given, others)}`"
        meant = [option for option in _SYNONYMS.get(flag[2:], ()) if option in known]
        return f"did you mean {' or '.join(meant)}?" if meant else ""
    return ""


def _positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings and isinstance(action.metavar, str)]


def _positional_of(parser: argparse.ArgumentParser, flag: str) -> argparse.Action | None:
    name = flag[2:].lower()
    positionals = _positionals(parser)
    for action in positionals:
        own = str(action.metavar).lower()
        if name in (own, own + "s", action.dest):
            return action
    for action in positionals:
        if name in _POSITIONALS.get(str(action.metavar), ()):
            return action
    return None


def _corrected(parser: argparse.ArgumentParser, wrong: argparse.Action, given: str, others: Sequence[str]) -> str:
    """Return the command line with `given` in its place among the positional arguments, the options behind them."""
    bare, options = _split(parser, others)
    words: list[str] = []
    for action in _positionals(parser):
        if action is wrong:
            words.append(given if given and not given.startswith("-") else str(action.metavar))
            continue
        if bare:
            words.append(bare.pop(0))
        elif action.nargs not in ("?", "*"):
            words.append(str(action.metavar))
    return f"{parser.prog} {shlex.join([*words, *bare, *options])}"


def _split(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the bare words, and the options with their values."""
    bare: list[str] = []
    options: list[str] = []
    takes_value = False
    for word in words:
        if takes_value or word.startswith("-"):
            options.append(word)
            action = None if takes_value else parser._option_string_actions.get(word)
            takes_value = action is not None and action.nargs != 0
        else:
            bare.append(word)
    return bare, options
