"""Reports an outage once when it begins and once when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eddyline.cli.terminal.output import Json
    from eddyline.core.errors import EddylineError


class Outage:
    """Told of every try, it says two things an outage. `say` takes text for people and fields for programs.

    `describe` puts an error in words; who knows the cluster sets one that names the role that is away.
    """

    def __init__(self, say: Callable[[str, Mapping[str, Json]], None]) -> None:
        self._say = say
        self._is_told = False
        self.describe: Callable[[EddylineError], str] = lambda error: error.message

    def failed(self, error: EddylineError) -> None:
        """One more try has failed."""
        if not self._is_told:
            self._is_told = True
            text = " ".join(self.describe(error).split())
            self._say(
                f"{error.reason}: {text}; reconnecting",
                {"event": "reconnecting", "reason": error.reason, "message": text},
            )

    def over(self) -> None:
        """It goes on."""
        if self._is_told:
            self._is_told = False
            # Whether anything was missed is not known yet: a gap may follow.
            self._say("connected again", {"event": "resumed"})
