"""How a command fails: one line on stderr with the reason and what to do, and its exit code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import EddylineError

if TYPE_CHECKING:
    from signal import Signals

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_SIGNALLED: Final = 128
"""Plus the signal's number, as shells have it: 130 for Ctrl-C, 143 for SIGTERM."""

_CLAUSE: Final = re.compile(r"(^|; |, )((?:`[^`]*`|(?!; |, ).)+)")


class CommandError(Exception):
    """A command failed; carries its message, advice and exit code. `advice` is printed after the message."""

    def __init__(self, message: str, advice: str = "", *, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.exit_code = exit_code


def exit_code_of(number: Signals) -> int:
    """The exit code of a command that a signal ended."""
    return EXIT_SIGNALLED + number


def failure_line(error: EddylineError | CommandError, *, verb: str = "") -> str:
    """The line for stderr; `verb` is the one that failed, which is not advised again."""
    if isinstance(error, CommandError):
        text, advice = error.message, error.advice
    else:
        text, advice = f"{error.reason}: {error.message}", error.advice
    advice = _without(advice, verb)
    line = " ".join(text.split())
    return f"eddyline: {line} ({advice})" if advice else f"eddyline: {line}"


def _without(advice: str, verb: str) -> str:
    """Advice without its clauses that name the verb itself."""
    kept = ""
    for clause in _CLAUSE.finditer(advice):
        if not re.search(rf"`eddyline {re.escape(verb)}[ `]", clause[2]):
            kept += clause[0] if kept else clause[2].removeprefix("or ")
    return kept


def known_cause(error: BaseException) -> EddylineError | CommandError | None:
    """The error of ours that a failure comes down to; of a task group's several the first; None = a defect."""
    if isinstance(error, EddylineError | CommandError):
        return error
    if isinstance(error, BaseExceptionGroup):
        causes = [known_cause(inner) for inner in error.exceptions]
        return causes[0] if causes and all(causes) else None
    return None
