"""Reports an outage once when it begins and once when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eddyline.cli.terminal.output import Json
    from eddyline.core.errors import EddylineError


class Outage:
    """Turns every failed try into at most two lines an outage. `report` takes text for people and fields for programs.

    `describe` turns an error into text; a caller that knows the cluster sets one that names the unreachable role.
    """

    def __init__(self, report: Callable[[str, Mapping[str, Json]], None]) -> None:
        self._report = report
        self._is_reported = False
        self.describe: Callable[[EddylineError], str] = lambda error: error.message

    def failed(self, error: EddylineError) -> None:
        """Report the outage, if this is its first failed try."""
        if not self._is_reported:
            self._is_reported = True
            text = " ".join(self.describe(error).split())
            self._report(
                f"{error.reason}: {text}; reconnecting",
                {"event": "reconnecting", "reason": error.reason, "message": text},
            )

    def over(self) -> None:
        """Report the end of the outage, if one was reported."""
        if self._is_reported:
            self._is_reported = False
            # Whether anything was missed is not known yet: a gap may follow.
            self._report("connected again", {"event": "resumed"})
