"""`eddyline` as a user runs it: each command line a process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import NamedTuple


class CommandOutput(NamedTuple):
    """A command's exit code, standard output and standard error."""

    code: int
    out: str
    err: str


def command(*words: str) -> list[str]:
    """Return the words of the process."""
    return [sys.executable, "-m", "eddyline.cli", *words]


async def run(*words: str) -> CommandOutput:
    """Run a command to its end."""
    process = await asyncio.create_subprocess_exec(
        *command(*words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return CommandOutput(process.returncode, out.decode(), err.decode())


def is_alive(pid: int) -> bool:
    """True = the process has a program: a zombie, which a test cannot reap, has none."""
    return Path(f"/proc/{pid}/exe").exists()
