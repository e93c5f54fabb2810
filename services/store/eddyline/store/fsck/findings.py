"""What a check finds: one line each, that names the place, what is wrong and what to do.

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
"""What helps where bytes are damaged or missing that are nowhere else."""
ASK: Final = "the store was wrong, not the disk: ask for help with the directory at hand"


class Severity(Enum):
    """How bad: an error is damage, or what refuses a start; a warning is odd, and loses nothing; a note is as it should be
    after a stop that was not clean."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(NamedTuple):
    """One line."""

    severity: Severity
    file: str
    offset: int
    what: str
    to_do: str

    def line(self) -> str:
        """As people read it."""
        text = f"{self.severity.value}: {self.file} at {self.offset}: {self.what}; {self.to_do}"
        return " ".join(text.split())

    def encoded(self) -> str:
        """As programs do: a JSON object."""
        body = {
            "severity": self.severity.value,
            "file": self.file,
            "offset": self.offset,
            "what": self.what,
            "to_do": self.to_do,
        }
        return json.dumps(body, ensure_ascii=False)


class Findings:
    """Told as they come, and counted."""

    def __init__(self, tell: Callable[[Finding], None]) -> None:
        self._tell = tell
        self.counts: Counter[Severity] = Counter()

    @property
    def any(self) -> bool:
        """True = there is more than notes."""
        return bool(self.counts[Severity.ERROR] or self.counts[Severity.WARNING])

    def error(self, file: Path | str, what: str, *, offset: int = 0, to_do: str = RESTORE) -> None:
        """Damage, or what refuses a start."""
        self._add(Finding(Severity.ERROR, str(file), offset, what, to_do))

    def warning(self, file: Path | str, what: str, *, to_do: str, offset: int = 0) -> None:
        """Odd, and nothing is lost."""
        self._add(Finding(Severity.WARNING, str(file), offset, what, to_do))

    def note(self, file: Path | str, what: str, *, to_do: str, offset: int = 0) -> None:
        """As it should be after a stop that was not clean."""
        self._add(Finding(Severity.NOTE, str(file), offset, what, to_do))

    def _add(self, finding: Finding) -> None:
        self.counts[finding.severity] += 1
        # An error of ours begins with the place, which the finding has.
        what = finding.what.removeprefix(f"{finding.file} is corrupt at offset {finding.offset}: ")
        self._tell(finding._replace(what=what))
