"""`python -m eddyline.store fsck DIR [-o json]`: arguments, output lines and exit codes.

Each finding is a line and the summary is the last line on standard output, with `-o json` one object each; progress goes
to stderr. Exit codes: 0 only notes, 1 errors or warnings, 2 the directory cannot be checked, or the findings cannot be
written.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.core.runtime.clock import SystemClock
from eddyline.core.runtime.fs import Locked
from eddyline.store.fold.fold import FoldFailed
from eddyline.store.fold.rocksdb import RocksFold
from eddyline.store.fsck.check import DirectoryCheck, NoDirectory
from eddyline.store.program_output import UnsaidError, say
from eddyline.store.shard.startup_errors import startup_error_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.store.fsck.check import Summary

EXIT_CLEAN: Final = 0
EXIT_FINDINGS: Final = 1
EXIT_UNCHECKED: Final = 2
PROGRESS_S: Final = 1.0
"""Shortest interval between two progress lines."""
_ALL_BYTES: Final = 1 << 62


def fsck(words: Sequence[str]) -> int:
    """Check a directory; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m eddyline.store fsck", description="Check the data directory of a stopped store; change nothing."
    )
    parser.add_argument("directory", metavar="DIR", type=Path)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args(words)
    as_json = arguments.output == "json"
    progress = _Progress()
    try:
        with tempfile.TemporaryDirectory(prefix="eddyline-fsck-") as scratch:
            check = DirectoryCheck(
                arguments.directory,
                clock=SystemClock(),
                report=lambda finding: say(finding.encoded() if as_json else finding.line()),
                progress=progress.report,
                open_fold=lambda path: RocksFold(path, checked_bytes=_ALL_BYTES, read_only=True),
                open_scratch=lambda: RocksFold(Path(scratch) / "fold"),
            )
            summary = check.run()
        say(json.dumps({"summary": summary._asdict()}) if as_json else _line(arguments.directory, summary))
    except NoDirectory as error:
        return _cannot(str(error))
    except UnsaidError as error:
        return _cannot(str(error)) if str(error) else EXIT_UNCHECKED
    except (Locked, OSError, FoldFailed) as error:
        return _cannot(startup_error_text(error, arguments.directory))
    return EXIT_FINDINGS if summary.errors or summary.warnings else EXIT_CLEAN


class _Progress:
    """Writes the current step to stderr, at most once a second."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._reported_s = self._clock.monotonic_s()

    def report(self, what: str) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._reported_s >= PROGRESS_S:
            self._reported_s = now_s
            sys.stderr.write(f"eddyline fsck: {what}\n")


def _line(directory: Path, summary: Summary) -> str:
    verdict = "clean" if not summary.errors and not summary.warnings else "not clean"
    return (
        f"{verdict}: {directory}: {summary.topics} topics, {summary.files} files, {summary.bytes} bytes; {summary.errors} "
        f"errors, {summary.warnings} warnings, {summary.notes} notes; {summary.orphans} files in orphans"
    )


def _cannot(why: str) -> int:
    sys.stderr.write(f"eddyline fsck: {why}\n")
    return EXIT_UNCHECKED
