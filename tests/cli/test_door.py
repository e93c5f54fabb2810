"""The command's door: signals while it loads, output that cannot be written, characters that a terminal would obey."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import eddyline.cli
from eddyline.cli.errors import CommandError
from eddyline.cli.terminal.output import Output
from tests.support.command_line import command_on_a_store, main
from tests.support.store.served import served_store

if TYPE_CHECKING:
    from typing import TextIO

    from eddyline.cli.terminal.output import OutputFormat

FULL: Final = Path("/dev/full")
"""A device on which every write fails as on a full disk."""
CODE = """
import os, signal, sys
from eddyline.cli.__main__ import main

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "eddyline.cli.commands.data.append":
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


def run(*words: str, stdout: str = "", stderr: str = "") -> subprocess.CompletedProcess[str]:
    """A command line in a process of its own, its output redirected as a shell has it, and buffered as Python has it."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    line = f'"$0" -m eddyline.cli "$@" {stdout} {stderr}'
    words = ("sh", "-c", line, sys.executable, *words)
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=False)


def discard(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere, so that closing it does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@pytest.mark.parametrize("line", ["--version", "--help", "key new --help", "key new n --scopes read"])
def test_output_that_cannot_be_written_is_one_line_and_exit_code_1(line: str) -> None:
    ended = run(*line.split(), stdout="> /dev/full")
    assert ended.returncode == 1
    assert ended.stderr == "eddyline: standard output cannot be written: No space left on device\n"


def test_closed_output_is_one_line_and_exit_code_1() -> None:
    ended = run("key", "new", "n", "--scopes", "read", stdout=">&-")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "standard output is closed" in ended.stderr


@pytest.mark.parametrize("stderr", ["2> /dev/full", "2>&-"])
@pytest.mark.parametrize(("line", "code"), [("status --data /nowhere", 1), ("status --nothing", 2)])
def test_stderr_that_cannot_be_written_changes_no_exit_code(line: str, code: int, stderr: str) -> None:
    ended = run(*line.split(), stderr=stderr)
    assert (ended.returncode, ended.stdout) == (code, "")


def test_reader_that_went_away_ends_the_command_in_silence() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        words = [sys.executable, "-m", "eddyline.cli", "key", "new", "n", "--scopes", "read"]
        ended = subprocess.run(words, stdout=gone, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


async def test_reader_that_leaves_ends_a_follower_that_has_nothing_to_write(tmp_path: Path) -> None:
    async with served_store(tmp_path) as store:
        await store.create("numbers")
        words = ["-m", "eddyline.cli", "read", "numbers", "--follow", "--cluster", store.address]
        reading, writing = os.pipe()
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=writing, stderr=asyncio.subprocess.PIPE
        )
        os.close(writing)
        os.close(reading)
        _, said = await process.communicate()
    assert (process.returncode, said) == (0, b"")


async def test_reader_that_stays_and_output_that_is_no_pipe_end_nothing(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        for stream in (os.fdopen(writing, "w"), (tmp_path / "said").open("w")):
            with stream:
                output = Output(stream=stream)
                async with output.until_reader_leaves():
                    output.print_text("a")
                    await asyncio.sleep(0)
                with pytest.raises(TimeoutError):
                    async with output.until_reader_leaves():
                        raise TimeoutError
    finally:
        os.close(reading)


async def test_verb_that_asks_a_cluster_takes_the_same_way_out(tmp_path: Path) -> None:
    async with served_store(tmp_path) as store:
        words = ["-m", "eddyline.cli", "status", "-o", "json", "--cluster", store.address]
        full = os.open(FULL, os.O_WRONLY)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=full, stderr=asyncio.subprocess.PIPE
        )
        os.close(full)
        _, said = await process.communicate()
    assert (process.returncode, said.count(b"\n")) == (1, 1)
    assert b"standard output cannot be written" in said


def test_nothing_but_the_output_writes_to_the_terminal() -> None:
    root = Path(eddyline.cli.__path__[0])
    writes = re.compile(r"\bprint\(|sys\.std(out|err)\b")
    writers = {path.name for path in root.rglob("*.py") if writes.search(path.read_text(encoding="utf-8"))}
    assert writers == {"output.py"}


@pytest.mark.parametrize("write", ["say", "say_text", "table", "redraw"])
def test_full_disk_is_a_failure_in_words(write: str) -> None:
    with FULL.open("w") as full:
        output = Output(stream=full)
        writes = {
            "say": lambda: output.print_result("text", {}),
            "say_text": lambda: output.print_text("text"),
            "table": lambda: output.table(("NAME",), [("a",)], [{"name": "a"}]),
            "redraw": lambda: output.redraw(["line"], over=0),
        }
        with pytest.raises(CommandError, match="No space left on device"):
            writes[write]()
        discard(full)


@pytest.mark.parametrize("output_format", ["text", "json"])
def test_control_characters_leave_the_command_escaped(
    output_format: OutputFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "\x1b[2J\x9b2J\x07\x7f\u202e\u2028\udcff"
    output = Output(output_format)
    output.print_result(f"a\n\tb {bad}", {"data": bad})
    output.print_text(bad)
    output.print_notice(bad, {"event": bad})
    output.table((f"NAME {bad}",), [(f"{bad}\n",)], [{"name": bad}])
    said = capsys.readouterr()
    told = said.out + said.err
    assert "\\u009b2J" in told
    assert all(char.isprintable() or char in "\n\t" for char in told)


@pytest.mark.parametrize("line", ["get\x9b2J", "status --no\x9b2J", "topic get --data /no\x9b2J t"])
def test_words_of_the_command_line_come_back_escaped(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(line.split()) == 1
    except SystemExit as ended:
        assert ended.code == 2
    said = capsys.readouterr().err
    assert "2J" in said
    assert "\x9b" not in said


def test_json_is_the_same_document_with_its_characters_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    data = "ü 日本 \x9b \U000e0041 \udcff \n"
    Output("json").print_result("", {"data": data})
    line = capsys.readouterr().out
    assert json.loads(line) == {"data": data}
    assert "ü 日本" in line


def test_locale_without_a_character_is_no_failure(tmp_path: Path) -> None:
    said = tmp_path / "said"
    for output_format in ("text", "json"):
        with said.open("a", encoding="ascii") as stream:
            Output(output_format, stream=stream).print_result("ü…", {"data": "ü"})
    assert said.read_bytes() == b'\\xfc\\u2026\n{"data":"\xc3\xbc"}\n'


async def test_multi_line_value_is_printed_without_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        await command.run("topic", "create", "kv", "--kind", "kv")
        await command.run("append", "kv", "--key", "k", "one\n\ttwo\x1b[2J")
        assert await command.text("get", "kv", "k") == (0, "one\n\ttwo\\u001b[2J\n")
