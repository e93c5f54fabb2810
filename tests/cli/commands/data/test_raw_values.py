"""A binary file goes in as a value and comes out byte by byte."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Final

import pytest

from eddyline.cli.errors import CommandError
from eddyline.cli.main import parse_arguments
from eddyline.cli.terminal.output import Output
from eddyline.core.records.record import DATA_META_BYTES_MAX
from tests.support.command_line import command_on_a_store

if TYPE_CHECKING:
    from pathlib import Path

VALUE: Final = bytes(range(256)) + b"\r\n\n\xef\xbb\xbf\x00"


def test_raw_bytes_follow_earlier_output_unchanged() -> None:
    written = io.BytesIO()
    output = Output(stream=io.TextIOWrapper(written, write_through=False))
    output.print_result("text", {})
    output.raw(VALUE)
    output.raw(b"")
    assert written.getvalue() == b"text\n" + VALUE


@pytest.mark.parametrize("kind", ["file", "standard input"])
async def test_file_is_one_value_and_comes_out_the_same(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "value"
    path.write_bytes(VALUE)
    with os.fdopen(os.open(path, os.O_RDONLY)) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        async with command_on_a_store(tmp_path / "data", monkeypatch) as command:
            file = "-" if kind == "standard input" else str(path)
            code, said = await command.run("append", "t", "--create", "kv", "--key", "k", "--file", file)
            assert (code, said[0]["last_seq"]) == (0, 1)
            code, raw = await command.text("get", "t", "k", "--raw")
            assert (code, raw.encode("utf-8", "surrogateescape")) == (0, VALUE)
            assert await command.text("get", "t", "none", "--raw") == (1, "")
            path.write_bytes(b"")
            await command.run("append", "t", "--key", "k", "--file", str(path))
            assert await command.text("get", "t", "k", "--raw") == (0, "")


@pytest.mark.parametrize("size", [DATA_META_BYTES_MAX + 1, None])
async def test_file_that_is_too_long_or_missing_reaches_no_cluster(size: int | None, tmp_path: Path) -> None:
    path = tmp_path / "value"
    if size is not None:
        path.write_bytes(b"x" * size)
    arguments = parse_arguments(["append", "t", "--file", str(path)])
    with pytest.raises(CommandError, match=r"value (is longer than 1048576 bytes|cannot be read: No such file)"):
        await arguments.run(arguments, None)


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        ("append t x --file f", "a VALUE or --file"),
        ("append t --json --file f", "--json or --file"),
        ("append t --skip 1 --file f", "--skip or --file"),
        ("append t --key k --op delete --file f", "takes no value"),
        ("get t a b --raw", "give one KEY"),
        ("get t a --raw -o json", "--raw writes bytes"),
        ("edge get --file f a b --raw", "give one KEY"),
        ("kv get b a --raw -o json", "--raw writes bytes"),
    ],
)
def test_contradictory_arguments_are_wrong_usage(line: str, trouble: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(line.split())
    assert ended.value.code == 2
    assert trouble in capsys.readouterr().err
