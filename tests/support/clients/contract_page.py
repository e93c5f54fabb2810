"""The lines of proto/README.md, run as they stand, with what this machine has of their tools."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = (ROOT / "proto" / "README.md").read_text(encoding="utf-8")
BUILT_IN: Final = ("cpp", "csharp", "java")
"""Languages whose messages protoc makes without a plugin."""
SECONDS_MAX: Final = 240.0


def page_lines(section: str) -> list[str]:
    """The lines of a section to paste; its programs are left out."""
    _, there, text = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL).partition(f"\n## {section}\n")
    assert there, section
    return re.findall(r"^    (\S.*)$", text.partition("\n## ")[0], re.MULTILINE)


def environment(folder: Path, *others: Path) -> dict[str, str]:
    """Ours, with the programs of this environment and what `go install` makes on the path, in a folder of its own."""
    path = [folder / "bin", Path(sys.executable).parent, *others]
    words = os.pathsep.join([*map(str, path), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": words, "GOBIN": str(folder / "bin"), "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}


async def run(line: str, folder: Path, given: Mapping[str, str]) -> tuple[int, str]:
    """Run a line in a folder; its exit status and what it said."""
    process = await asyncio.create_subprocess_shell(
        line, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=given
    )
    async with asyncio.timeout(SECONDS_MAX):
        said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def passes(line: str, folder: Path, given: Mapping[str, str]) -> str:
    """Run a line that must pass; what it said."""
    status, said = await run(line, folder, given)
    assert status == 0, f"{line}: {said}"
    return said


def workspace(folder: Path) -> Path:
    """A folder as the page wants it."""
    (folder / "proto").symlink_to(ROOT / "proto")
    (folder / "gen").mkdir()
    return folder


def without_missing_plugins(line: str, given: Mapping[str, str]) -> str:
    """A line without the plugins that this machine does not have; protoc itself makes the messages then."""
    for name in re.findall(r" --([\w-]+)_out=", line):
        plugin = re.escape(f"--plugin=protoc-gen-{name}=")
        by_path = re.search(rf'{plugin}"\$\(command -v ([\w-]+)\)"', line)
        program = by_path[1] if by_path else f"protoc-gen-{name}"
        if name not in BUILT_IN and not shutil.which(program, path=given["PATH"]):
            line = re.sub(rf' (--{name}_out=\S+|{plugin}"[^"]*")', "", line)
    return line


async def generated_go(folder: Path) -> dict[str, str]:
    """Code for Go by the page's lines; the environment. Skips where there is no Go, or its modules cannot be had."""
    if shutil.which("go") is None:
        pytest.skip("no go on this machine")
    given = environment(folder)
    for line in page_lines("Go"):
        status, said = await run(line, folder, given)
        if status and shlex.split(line)[0] == "go":
            pytest.skip(f"plugins of protoc cannot be had here: {said.strip().splitlines()[-1]}")
        assert status == 0, f"{line}: {said}"
    return given
