"""A terminal in an empty folder: lines are run by bash exactly as a person types them, commands of ours on its PATH."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LINE_SECONDS_MAX = 120
# settings of the machine that runs the tests are not those of a newcomer
_OWN_SETTINGS = ("EDDYLINE_", "OTEL_", "NATS_")
_WIRE = "EDDYLINE_COMMON_WIRE"


class Terminal:
    """Runs lines in one folder. Not thread-safe."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        kept = {
            name: value for name, value in os.environ.items() if name == _WIRE or not name.startswith(_OWN_SETTINGS)
        }
        self._environment = {**kept, "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}", **environment}

    def types(self, line: str, *shown: str, code: int = 0, stdin: str = "") -> str:
        """Run a line to its end; its standard output and standard error.

        The exit code must be `code`, and every text of `shown` must be in the output.
        """
        ended = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self._environment,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LINE_SECONDS_MAX,
            check=False,
        )
        assert ended.returncode == code, f"{line}: exit code {ended.returncode}: {ended.stdout}"
        for text in shown:
            assert text in ended.stdout, f"{line}: {text!r} is not in: {ended.stdout}"
        return ended.stdout

    def writes(self, name: str, text: str) -> Path:
        """Save a file in the folder, as with an editor."""
        file = self.folder / name
        file.write_text(text, encoding="utf-8")
        return file

    @contextmanager
    def runs(self, line: str, *, until: str) -> Iterator[Running]:
        """Run a line in another terminal from its output `until` on; end it with Ctrl-C."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        with process:
            running = Running(line, process)
            try:
                running.wait_for(until)
                yield running
            finally:
                running.ctrl_c()


class Running:
    """A line that runs in the foreground of another terminal."""

    def __init__(self, line: str, process: subprocess.Popen[str]) -> None:
        self._line = line
        self._process = process
        self._lines: list[str] = []
        self._more = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._reader.start()

    def wait_for(self, text: str) -> str:
        """Wait until `text` is in the output; the whole output so far."""
        with self._more:
            self._more.wait_for(lambda: self._ended or text in self.output, timeout=LINE_SECONDS_MAX)
            assert text in self.output, f"{self._line}: {text!r} is not in: {self.output}"
            return self.output

    @property
    def output(self) -> str:
        """All it has printed."""
        return "".join(self._lines)

    def ctrl_c(self) -> int:
        """Press Ctrl-C if it still runs and wait for its end; the exit code."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        code = self._process.wait(LINE_SECONDS_MAX)
        self._reader.join(LINE_SECONDS_MAX)
        return code

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._more:
                self._lines.append(line)
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()
