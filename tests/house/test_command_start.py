"""The command starts fast: what calls no cluster loads neither gRPC nor numpy, nor what needs them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import pytest

HEAVY: Final = ("grpc", "google", "nats", "pyarrow", "numpy", "opentelemetry", "eddyline.client", "eddyline.v1")
"""Each takes 30 to 250 ms of processor time; a whole start has 200."""
CODE: Final = """
import json, sys
from eddyline.cli.__main__ import main

sys.argv = ["eddyline", *sys.argv[1:]]
try:
    code = main()
except SystemExit as ended:
    code = ended.code
print(json.dumps([code, sorted(sys.modules)]))
"""
ALL_HELP: Final = """
import argparse, contextlib, io, json, sys
from eddyline.cli.main import parse_arguments, parser

def lines(at, words):
    below = [action for action in at._actions if isinstance(action, argparse._SubParsersAction)]
    yield words
    for action in below:
        for name, inner in action.choices.items():
            yield from lines(inner, [*words, name])

codes = set()
for words in lines(parser(), []):
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            parse_arguments([*words, "--help"])
        except SystemExit as ended:
            codes.add(ended.code)
print(json.dumps([sorted(codes), sorted(sys.modules)]))
"""


def heavy_modules(code: str, *words: str) -> tuple[object, list[str]]:
    """The exit code, and what of the heavy modules a command line of a process of its own has loaded."""
    ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    exit_code, modules = json.loads(ended.stdout.splitlines()[-1])
    return exit_code, [module for module in modules if module in HEAVY]


@pytest.mark.parametrize("line", ["--version", "--help", "key new orders --scopes read"])
def test_lines_that_call_no_role_load_nothing_heavy(line: str) -> None:
    assert heavy_modules(CODE, *line.split()) == (0, [])


def test_help_of_every_verb_loads_nothing_heavy() -> None:
    assert heavy_modules(ALL_HELP) == ([0], [])
