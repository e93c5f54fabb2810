"""Asks whether it is meant, where somebody sits at the terminal; a script is not asked."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Final

from eddyline.cli.errors import CommandError
from eddyline.cli.terminal.output import ask

if TYPE_CHECKING:
    import argparse

_LINE_BYTES: Final = 4096
"""A terminal gives no longer line."""


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", "-y", action="store_true", help="do not prompt (only a terminal is prompted)")


async def confirm(question: str, arguments: argparse.Namespace) -> None:
    """Ask, unless --yes is given or standard input is no terminal.

    Raises:
        CommandError: the answer is not yes.
    """
    if arguments.yes or sys.stdin is None or not sys.stdin.isatty():
        return
    ask(f"{question} [y/N]")
    if (await _answer(sys.stdin.fileno())).strip().lower() not in (b"y", b"yes"):
        raise CommandError("nothing was done", "answer y, or give --yes")


async def _answer(terminal: int) -> bytes:
    """A line, or b"" at the end. A terminal is ready when it has a whole line, so that reading it waits for nobody."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(terminal, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(terminal)
    return os.read(terminal, _LINE_BYTES)
