"""The example clients of `libs/clients` as commands: built once, run as a user runs them, their lines read."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

ROOT = Path(__file__).parents[3]
NOT_HERE = 77
"""Output of the build for a toolchain or packages that are not available."""
BUILD_SECONDS_MAX = 280
LINES_SECONDS_MAX = 120
LINE_BYTES_MAX = 1 << 20

Line = dict[str, object]


async def built(language: str) -> Path:
    """The client's command; skips the test where it cannot be built on this machine."""
    build = await asyncio.create_subprocess_exec(
        ROOT / "libs/clients/build.sh", language, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(BUILD_SECONDS_MAX):
            said, _ = await build.communicate()
    finally:
        if build.returncode is None:
            build.terminate()
            await build.wait()
    if build.returncode == NOT_HERE:
        pytest.skip(said.decode().strip().splitlines()[-1])
    assert build.returncode == 0, said.decode()
    return ROOT / "build/clients" / language / "client"


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended; what it said on each of its ways out."""

    status: int
    lines: list[Line]
    errors: list[Line]


@dataclass(slots=True)
class Watching:
    """A watch that runs; `lines` grow as they are waited for."""

    process: asyncio.subprocess.Process
    lines: list[Line] = field(default_factory=list)

    async def until(self, enough: Callable[[Line], bool]) -> None:
        """Read up to a line that is enough."""
        async with asyncio.timeout(LINES_SECONDS_MAX):
            while True:
                line = await self.next()
                assert line is not None, f"ended after {self.lines[-3:]}"
                if enough(line):
                    return

    async def next(self) -> Line | None:
        """Read a line; None at the end."""
        assert self.process.stdout is not None
        text = await self.process.stdout.readline()
        if not text:
            return None
        line: Line = json.loads(text)
        self.lines.append(line)
        return line

    async def end(self) -> int:
        """Read to the end; the exit status."""
        async with asyncio.timeout(LINES_SECONDS_MAX):
            while await self.next() is not None:
                pass
            return await self.process.wait()

    @property
    def records(self) -> list[Line]:
        """The lines that are records."""
        return [line for line in self.lines if "op" in line]


@dataclass(frozen=True, slots=True)
class ExampleClient:
    """One client against one cluster. `environment` = what is added to ours."""

    command: Path
    store: str
    delivery: str
    environment: Mapping[str, str] = field(default_factory=dict)

    async def run(self, *words: str, stdin: bytes = b"") -> Finished:
        """Run a command to its end."""
        process = await self._start(words, stderr=asyncio.subprocess.PIPE)
        async with asyncio.timeout(LINES_SECONDS_MAX):
            out, err = await process.communicate(stdin)
        assert process.returncode is not None
        return Finished(process.returncode, _lines(out), _lines(err))

    @asynccontextmanager
    async def watch(self, *words: str) -> AsyncIterator[Watching]:
        """Run a watch; stopped at the end."""
        process = await self._start(("watch", *words), stderr=None)
        try:
            yield Watching(process)
        finally:
            if process.returncode is None:
                process.terminate()
            # What it still wrote is taken, so that it cannot wait for a reader.
            await process.communicate()

    async def _start(self, words: tuple[str, ...], *, stderr: int | None) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            self.command,
            *words,
            f"--store={self.store}",
            f"--delivery={self.delivery}",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **self.environment},
            limit=LINE_BYTES_MAX,
        )


def _lines(text: bytes) -> list[Line]:
    return [json.loads(line) for line in text.splitlines()]
