"""A signal while the command still loads ends it with its exit code, and without a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

CODE = """
import os, signal, sys
from eddyline.cli.__main__ import main

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "eddyline.cli.append":
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Interrupts())
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_while_the_command_loads_is_quiet(number: signal.Signals, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CODE.format(number=int(number)), "--version"], capture_output=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, b"", b"")
