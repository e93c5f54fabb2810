"""The documents followed as a newcomer follows them: the commands and first client of README.md and the first clients of
proto/README.md, on one cluster; the lines of ACCESS.md, on a cluster with keys.

Only what a shared machine needs is changed: `eddyline up` takes any free ports, and the programs get those addresses in
the place of the default ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import stat
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.support.clients.contract_page import generated_go, passes, workspace
from tests.support.clients.example_clients import built

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRACT = (ROOT / "proto" / "README.md").read_text(encoding="utf-8")
ACCESS = (ROOT / "libs" / "core" / "ACCESS.md").read_text(encoding="utf-8")
COMMAND = ".venv/bin/eddyline"
START_SECONDS_MAX = 200
STEP_SECONDS_MAX = 200
PROGRAM_LINES_MAX = {"python": 12, "javascript": 12, "java": 24, "go": 36}


def lines_of(document: str, section: str) -> list[list[str]]:
    """The lines to paste of a section, in order, as words."""
    _, _, text = document.partition(f"\n## {section}\n")
    lines = [line for line in text.partition("\n## ")[0].splitlines() if re.match(rf"    ({COMMAND}|export) ", line)]
    return [shlex.split(line, comments=True) for line in lines]


def commands() -> list[list[str]]:
    """The commands of the first cluster, without the program's name."""
    return [words[1:] for words in lines_of(README, "Run it")]


def program(language: str, addresses: dict[str, str]) -> str:
    """The program in one language, of README.md or proto/README.md, at the cluster's addresses."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", README + CONTRACT, re.DOTALL)
    assert len([line for line in text.splitlines() if line.strip()]) <= PROGRAM_LINES_MAX[language]
    return str(text).replace("127.0.0.1:7701", addresses["store"]).replace("127.0.0.1:7703", addresses["delivery"])


@asynccontextmanager
async def started(
    *arguments: str | Path, folder: Path, exported: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program in a folder; stopped at the end."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **(exported or {})},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def said_until(process: asyncio.subprocess.Process, last: str, *, seconds: float = STEP_SECONDS_MAX) -> str:
    """A program's output up to the line with `last` in it."""
    assert process.stdout is not None
    said = ""
    try:
        async with asyncio.timeout(seconds):
            while last not in said:
                line = await process.stdout.readline()
                assert line, f"it ended before it said {last!r}: {said}"
                said += line.decode()
    except TimeoutError:
        pytest.fail(f"it never said {last!r}: {said}")
    return said


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def addresses(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, str]]:
    """The README's cluster in a folder, with its topic and records: the addresses. Its programs run beside it."""
    folder = tmp_path_factory.mktemp("cluster")
    eddyline = Path(sys.executable).parent / "eddyline"
    up, *others = commands()
    assert up == ["up"]
    async with started(eddyline, *up, "--free-ports", folder=folder) as supervisor:
        await said_until(supervisor, "eddyline status", seconds=START_SECONDS_MAX)
        for words in others:
            async with started(eddyline, *words, folder=folder) as command:
                if words[0] == "watch":
                    said = await said_until(command, "caught up")
                    assert "paid" in said
                else:
                    said, _ = [(text or b"").decode() for text in await command.communicate()]
                    assert command.returncode == 0, f"{words}: {said}"
        parts = json.loads((folder / "eddyline-data" / "cluster.json").read_text(encoding="utf-8"))
        yield {name: part["address"] for name, part in parts.items()}


async def test_python_program_appends_and_watches(tmp_path: Path, addresses: dict[str, str]) -> None:
    file = tmp_path / "first.py"
    file.write_text(program("python", addresses), encoding="utf-8")
    async with started(sys.executable, "-u", file, folder=tmp_path) as first:
        said = await said_until(first, "CaughtUp")
    assert "b'paid'" in said


async def test_javascript_program_appends_and_watches(tmp_path: Path, addresses: dict[str, str]) -> None:
    example = (await built("node")).parent
    (tmp_path / "node_modules").symlink_to(example / "node_modules")
    (tmp_path / "proto").symlink_to(ROOT / "proto")
    file = tmp_path / "first.js"
    file.write_text(program("javascript", addresses), encoding="utf-8")
    async with started("node", file, folder=tmp_path) as first:
        said = await said_until(first, "caughtUp")
    assert re.search(r"key: (<Buffer 31 37>|Buffer\(2\) \[Uint8Array\] \[ 49, 55 \])", said), said


async def test_go_program_appends_and_watches(tmp_path: Path, addresses: dict[str, str]) -> None:
    given = await generated_go(workspace(tmp_path))
    # The versions of the example: what is newest today may not be here, nor be tried.
    module = (ROOT / "libs/clients/go/go.mod").read_text(encoding="utf-8")
    (tmp_path / "go.mod").write_text(re.sub(r"(?m)^module .*", "module first", module), encoding="utf-8")
    (tmp_path / "first.go").write_text(program("go", addresses), encoding="utf-8")
    await passes("go mod tidy && go build -buildvcs=false -o first .", tmp_path, given)
    async with started(tmp_path / "first", folder=tmp_path) as first:
        said = await said_until(first, "caught_up")
    assert 'data:"paid"' in said


async def test_java_program_appends_and_watches(tmp_path: Path, addresses: dict[str, str]) -> None:
    """With what the example's pom.xml has made: it is built once for all tests."""
    target = (await built("java")).parent / "target"
    (tmp_path / "First.java").write_text(program("java", addresses), encoding="utf-8")
    classes = f"{target}/client.jar:{target}/lib/*"
    await passes(f"javac -cp '{classes}' -d . First.java", tmp_path, os.environ)
    async with started("java", "-cp", f".:{classes}", "First", folder=tmp_path) as first:
        said = await said_until(first, "caught_up")
    assert 'data: "paid"' in said


async def test_access_is_pasted_line_by_line(tmp_path: Path) -> None:
    eddyline = Path(sys.executable).parent / "eddyline"
    lines = lines_of(ACCESS, "Set it up")
    keys = lines_of(README, "Access")
    assert keys == lines[: len(keys)]
    assert [words[1:3] for words in keys] == [["key", "new"]] * 3
    at = lines.index([COMMAND, "up"])
    before, after = lines[:at], lines[at + 1 :]
    exported: dict[str, str] = {}
    for words in before:
        if words[0] == "export":
            exported |= dict(word.split("=", 1) for word in words[1:])
        else:
            await ends(eddyline, *words[1:], folder=tmp_path)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}  # noqa: ASYNC240 - a look at four names
    assert modes == dict.fromkeys(("keys.toml", "cluster.key", "ops.key", "billing.key"), 0o600)
    async with started(eddyline, "up", "--free-ports", folder=tmp_path, exported=exported) as supervisor:
        await said_until(supervisor, "eddyline status", seconds=START_SECONDS_MAX)
        assert [words[1] for words in after] == ["topic", "append"]
        for words in after:
            await ends(eddyline, *words[1:], folder=tmp_path)
        refused = await ends(eddyline, "append", "other", "x", "--key-file", "billing.key", folder=tmp_path, code=1)
        assert "PERMISSION_DENIED" in refused


async def ends(*arguments: str | Path, folder: Path, code: int = 0) -> str:
    """Run a program to its end; what it said."""
    async with asyncio.timeout(STEP_SECONDS_MAX), started(*arguments, folder=folder) as program:
        said, _ = [(text or b"").decode() for text in await program.communicate()]
    assert program.returncode == code, f"{arguments}: {said}"
    return said
