"""Findings of a check: one line each, with the file, the problem and the operator's action.

Threading: one thread.
"""

from __future__ import annotations

import json
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RESTORE: Final = "restore the data directory from a copy; keep this one until that is done"
"""Action for damaged or missing bytes without another copy in the directory."""
ASK: Final = "a defect of the store, not of the disk: keep the directory and report it"


class Severity(Enum):
    """Severity of a finding: an error is damage, or makes a start fail; a warning is unexpected but loses nothing; a
    note is normal after a stop that was not clean."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(NamedTuple):
    """An observation about one file, and what to do about it."""

    severity: Severity
    file: str
    offset: int
    what: str
    to_do: str

    def line(self) -> str:
        """Format the finding as text."""
        text = f"{self.severity.value}: {self.file} at {self.offset}: {self.what}; {self.to_do}"
        return " ".join(text.split())

    def encoded(self) -> str:
        """Format the finding as a JSON object."""
        body = {
            "severity": self.severity.value,
            "file": self.file,
            "offset": self.offset,
            "what": self.what,
            "to_do": self.to_do,
        }
        return json.dumps(body, ensure_ascii=False)


class Findings:
    """Reports findings as they come, and counts them."""

    def __init__(self, report: Callable[[Finding], None]) -> None:
        self._report = report
        self.counts: Counter[Severity] = Counter()

    @property
    def any(self) -> bool:
        """Whether there are errors or warnings."""
        return bool(self.counts[Severity.ERROR] or self.counts[Severity.WARNING])

    def error(self, file: Path | str, what: str, *, offset: int = 0, to_do: str = RESTORE) -> None:
        """Report damage, or a cause that makes a start fail."""
        self._add(Finding(Severity.ERROR, str(file), offset, what, to_do))

    def warning(self, file: Path | str, what: str, *, to_do: str, offset: int = 0) -> None:
        """Report an unexpected state that loses nothing."""
        self._add(Finding(Severity.WARNING, str(file), offset, what, to_do))

    def note(self, file: Path | str, what: str, *, to_do: str, offset: int = 0) -> None:
        """Report a state that is normal after a stop that was not clean."""
        self._add(Finding(Severity.NOTE, str(file), offset, what, to_do))

    def _add(self, finding: Finding) -> None:
        self.counts[finding.severity] += 1
        # The store's own errors begin with file and offset, which the finding already has.
        what = finding.what.removeprefix(f"{finding.file} is corrupt at offset {finding.offset}: ")
        self._report(finding._replace(what=what))
