"""A signal while the command still loads ends it with its exit code, and without a traceback."""

from __future__ import annotations

import os
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


@pytest.mark.parametrize(("before", "then"), [({}, "ERROR"), ({"GRPC_VERBOSITY": "INFO"}, "INFO")])
def test_chatter_of_grpc_is_off_unless_somebody_wants_it(before: dict[str, str], then: str) -> None:
    code = "import os, sys; from eddyline.cli.__main__ import main; sys.argv[1:] = ['topic', 'create', 't', '--ttl', '1']\n"
    code += "try: main()\nexcept SystemExit: print(os.environ['GRPC_VERBOSITY'])"
    environ = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"} | before
    ended = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == then


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_while_the_command_loads_is_quiet(number: signal.Signals, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CODE.format(number=int(number)), "--version"], capture_output=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, b"", b"")
