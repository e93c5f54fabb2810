"""The check of a data directory: the store's own program, its words, its exit code, and its end with ours."""

from __future__ import annotations

import asyncio
import io
import random
import sys
from typing import TYPE_CHECKING

import pytest

from eddyline.cli.command import Context
from eddyline.cli.commands.cluster import fsck
from eddyline.cli.errors import CommandError
from eddyline.cli.main import parse_arguments
from eddyline.cli.terminal.output import Output
from eddyline.core.runtime.clock import SystemClock, SystemHost

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import signal, sys
print(*sys.argv[1:], flush=True)
print("a note", file=sys.stderr, flush=True)
if sys.argv[2].endswith("endless"):
    signal.pause()
sys.exit(int(sys.argv[2][-1]))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in the store's place that tells its arguments; its exit code is the directory's last letter."""
    (tmp_path / "scripted_fsck.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    monkeypatch.setattr("eddyline.cli.commands.cluster.fsck.STORE_MODULE", "scripted_fsck")


async def check(*words: str) -> int:
    arguments = parse_arguments(["fsck", *words])
    context = Context(
        output=Output(arguments.output, stream=io.StringIO()),
        environ={},
        clock=SystemClock(),
        host=SystemHost(),
        random_source=random.Random(1),
    )
    code: int = await arguments.run(arguments, context)
    return code


@pytest.mark.usefixtures("program")
async def test_words_and_exit_code_are_passed_through(capfd: pytest.CaptureFixture[str]) -> None:
    assert [await check(f"dir{code}") for code in (0, 1, 2)] == [0, 1, 2]
    assert await check("dir1", "-o", "json") == 1
    said = capfd.readouterr()
    assert said.out == "fsck dir0\nfsck dir1\nfsck dir2\nfsck dir1 -o json\n"
    assert said.err == "a note\n" * 4


def test_a_folder_of_up_means_its_store(tmp_path: Path) -> None:
    assert fsck.data_directory(tmp_path) == tmp_path
    (tmp_path / "cluster.json").touch()
    assert fsck.data_directory(tmp_path) == tmp_path / "store"


@pytest.mark.usefixtures("program")
async def test_a_check_ends_with_its_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[asyncio.subprocess.Process] = []
    running = asyncio.Event()
    create = asyncio.create_subprocess_exec

    async def create_and_tell(*words: str) -> asyncio.subprocess.Process:
        started.append(await create(*words, stdout=asyncio.subprocess.PIPE))
        running.set()
        return started[0]

    monkeypatch.setattr("asyncio.create_subprocess_exec", create_and_tell)
    async with asyncio.TaskGroup() as group:
        checking = group.create_task(check("endless"))
        await running.wait()
        assert started[0].stdout is not None
        await started[0].stdout.readline()
        checking.cancel()
    assert started[0].returncode is not None
    assert started[0].returncode < 0


async def test_a_machine_without_the_store_cannot_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eddyline.cli.commands.cluster.fsck.STORE_MODULE", "not_installed_here")
    with pytest.raises(CommandError, match="not installed") as caught:
        await check("dir0")
    assert caught.value.exit_code == 2
