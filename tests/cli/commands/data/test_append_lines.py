"""Appends of standard input: line numbers, true counts, advice that repeats nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from eddyline.cli.errors import CommandError
from eddyline.cli.terminal.stdin import LINE_BYTES_MAX
from eddyline.client.append.append_run import AppendRun
from eddyline.core.errors import TopicNotFound
from tests.support.command_line import command_on_a_store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path


def give(monkeypatch: pytest.MonkeyPatch, *lines: bytes) -> None:
    async def given(skip: int) -> AsyncGenerator[bytes, None]:
        for line in lines[skip:]:
            yield line

    monkeypatch.setattr("eddyline.cli.commands.data.append_lines.stdin_lines", given)


async def test_lines_are_appended_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, *(b"line %d" % number for number in range(200)))
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        assert (await command.run("append", "log", "--create", "log"))[1][0]["count"] == 200
        _, said = await command.run("read", "log")
        assert [line["data"] for line in said] == [f"line {number}" for number in range(200)]


async def test_same_input_with_the_same_key_is_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, b"a", b"b", b"c")
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        words = ("append", "log", "--create", "log", "--idempotency-key", "k")
        await command.run(*words)
        await command.run(*words)
        assert (await command.run(*words, "--skip", "2"))[1][0]["last_seq"] == 3
        assert (await command.run("topic", "get", "log"))[1][0]["head_seq"] == 3


async def test_bad_line_is_reported_with_number_and_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        give(monkeypatch, b'{"data":"a"}', b"", b"  ", b'{"data":"b"}', b'{"dat":"c"}', b'{"data":"d"}')
        with pytest.raises(CommandError) as caught:
            await command.run("append", "log", "--create", "log", "--json")
        assert caught.value.exit_code == 1
        assert caught.value.message.startswith("line 5: unknown field 'dat'")
        assert caught.value.message.endswith("; 2 lines are acknowledged")
        assert caught.value.advice.endswith("correct line 5 and use --skip 4, or leave it out with --skip 5")
        assert [line["data"] for line in (await command.run("read", "log"))[1]] == ["a", "b"]


async def test_bad_first_line_is_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        give(monkeypatch, b"{")
        with pytest.raises(CommandError, match="line 1, column 2: ") as caught:
            await command.run("append", "log", "--create", "log", "--json")
        assert caught.value.exit_code == 2
        assert caught.value.message.startswith("line 1, column 2: not JSON: ")
        assert caught.value.advice.endswith("; correct line 1, or leave it out with --skip 1")


LONG = b"x" * (LINE_BYTES_MAX + 100_000)
"""A line that standard input refuses."""
LARGE = b"y" * 2_000_000
"""A line that the store refuses as a record."""


@pytest.mark.parametrize("is_pipe", [False, True])
@pytest.mark.parametrize("wrong", [LONG, LARGE], ids=["line", "record"])
async def test_advice_for_a_line_that_is_too_long_works(
    wrong: bytes, is_pipe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"a\nb\nc\n" + wrong + b"\ne\n"
    async with command_on_a_store(tmp_path / "data", monkeypatch) as command:
        with (
            standard_input(content, is_pipe, tmp_path, monkeypatch),
            pytest.raises(CommandError, match=r"^line 4: ") as caught,
        ):
            await command.run("append", "log", "--create", "log")
        assert caught.value.message.endswith("; 3 lines are acknowledged")
        assert caught.value.advice.endswith("; correct line 4 and use --skip 3, or leave it out with --skip 4")
        with (
            standard_input(content, is_pipe, tmp_path, monkeypatch),
            pytest.raises(CommandError, match=r"^line 4: ") as repeated,
        ):
            await command.run("append", "log", "--skip", "3")
        assert repeated.value.advice == caught.value.advice
        with standard_input(content, is_pipe, tmp_path, monkeypatch):
            assert (await command.run("append", "log", "--skip", "4"))[1][0]["count"] == 1
        assert [line["data"] for line in (await command.run("read", "log"))[1]] == ["a", "b", "c", "e"]


@contextmanager
def standard_input(content: bytes, is_pipe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "lines").write_bytes(content)
    with ExitStack() as stack:
        if is_pipe:
            process = stack.enter_context(subprocess.Popen(["cat", tmp_path / "lines"], stdout=subprocess.PIPE))
            assert process.stdout is not None
            file = stack.enter_context(os.fdopen(os.dup(process.stdout.fileno())))
            process.stdout.close()
        else:
            file = stack.enter_context((tmp_path / "lines").open())
        monkeypatch.setattr("sys.stdin", file)
        yield


async def test_json_values_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        await command.run("append", "log", "--create", "log", "--json", '{"data":"x","meta":{"a":"b"}}')
        said = (await command.run("read", "log"))[1][0]
        assert (said["data"], said["meta"]) == ("x", [{"name": "a", "value": "b"}])
        with pytest.raises(CommandError) as caught:
            await command.run("append", "log", "--json", "x")
        assert caught.value.exit_code == 2


async def test_refused_line_is_reported_with_number_and_safe_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        give(monkeypatch, b'{"key":"a"}', b"", b'{"data":"no key"}')
        with pytest.raises(CommandError) as caught:
            await command.run("append", "kv", "--create", "kv", "--json")
        assert caught.value.message.startswith("line 3: KEY_REQUIRED")
        assert caught.value.message.endswith("; 1 line is acknowledged")
        assert caught.value.advice.startswith("give one with --key")
        assert caught.value.advice.endswith("; correct line 3 and use --skip 1, or leave it out with --skip 3")


async def test_empty_input_is_nothing_to_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        await command.run("append", "log", "x", "--create", "log")
        give(monkeypatch)
        assert await command.run("append", "log") == (0, [{"count": 0}])


async def test_interrupted_append_prints_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    going_on = asyncio.Event()

    class Run(AppendRun):
        """Tells when it has an answer."""

        def _settle(self) -> None:
            super()._settle()
            if self.acknowledged:
                going_on.set()

    async def endless(skip: int) -> AsyncGenerator[bytes, None]:
        assert skip == 0
        yield b"one"
        await asyncio.Event().wait()

    monkeypatch.setattr(import_module("eddyline.client.connect"), "AppendRun", Run)
    monkeypatch.setattr("eddyline.cli.commands.data.append_lines.stdin_lines", endless)
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        await command.run("topic", "create", "log")
        async with asyncio.TaskGroup() as group:
            appending = group.create_task(command.run("append", "log"))
            await going_on.wait()
            appending.cancel()
    assert "stopped: 1 line is acknowledged (continue with the same input and --skip 1)\n" in capsys.readouterr().err


async def test_missing_topic_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        give(monkeypatch, b"x")
        with pytest.raises(TopicNotFound):
            await command.run("append", "missing")
