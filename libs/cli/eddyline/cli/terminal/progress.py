"""How far a long piece of work is: a line on stderr now and then, and none where it is soon done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.cli.terminal.output import print_error

if TYPE_CHECKING:
    from eddyline.core.runtime.clock import Clock

EVERY_S: Final = 2.0
"""Often enough to see that it goes on; an hour's work leaves 1 800 lines in a log."""


SAME_EVERY_S: Final = 30.0
"""An unchanged figure is not printed as progress, but a line from time to time says that the work goes on."""


class ProgressReporter:
    """Of one piece of work, from its making on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_s = clock.monotonic_s() + EVERY_S
        self._said = ""
        self._said_s = 0.0

    def tell(self, text: str) -> None:
        """It is so far; said if it is time."""
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s or (text == self._said and now_s < self._said_s + SAME_EVERY_S):
            return
        self._next_s = now_s + EVERY_S
        self._said, self._said_s = text, now_s
        print_error(text)


def share(done: int, total: int) -> str:
    """Done of total in per cent; a total of 0 is not known yet."""
    return f"{min(100 * done // total, 100)}%" if total else "…"
