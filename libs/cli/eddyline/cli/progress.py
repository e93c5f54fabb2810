"""How far a long piece of work is: a line on stderr now and then, and none where it is soon done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.cli.output import tell

if TYPE_CHECKING:
    from eddyline.core.clock import Clock

EVERY_S: Final = 2.0
"""Often enough to see that it goes on; an hour's work leaves 1 800 lines in a log."""


class Progress:
    """Of one piece of work, from its making on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_s = clock.monotonic_s() + EVERY_S

    def tell(self, text: str) -> None:
        """It is so far; said if it is time."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            tell(text)


def share(done: int, total: int) -> str:
    """Done of total in per cent; a total of 0 is not known yet."""
    return f"{min(100 * done // total, 100)}%" if total else "…"
