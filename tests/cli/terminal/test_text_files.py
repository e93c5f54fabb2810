"""One rule for text that people write: a byte order mark is passed over, a line ends with LF or CRLF."""

from __future__ import annotations

import asyncio
import codecs
import os
from typing import TYPE_CHECKING

from eddyline.cli.local_cluster.settings_check import check_sources_file
from eddyline.cli.terminal import stdin
from eddyline.cli.terminal.json_record import record_from_json
from eddyline.core.auth.keys_file import digest_of, new_secret, parse_secret
from eddyline.core.auth.role import RoleAccess
from eddyline.core.records.record import Record
from eddyline.core.runtime.settings import CommonSettings
from eddyline.core.telemetry.http_server import read_key
from eddyline.ingest.__main__ import read_sources
from tests.support.command_line import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def windows_file(path: Path, text: str) -> Path:
    """A file as editors on Windows write it."""
    path.write_bytes(codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode())
    return path


async def lines_of(content: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[bytes]]:
    """The lines of standard input that is a file, and of one that is a pipe."""
    (tmp_path / "lines").write_bytes(content)
    found = []
    for source in (tmp_path / "lines", None):
        if source is not None:
            descriptor = os.open(source, os.O_RDONLY)
        else:
            descriptor, writing = os.pipe()
            os.write(writing, content)
            os.close(writing)
        with os.fdopen(descriptor) as file:
            monkeypatch.setattr("sys.stdin", file)
            found.append([line async for line in stdin.stdin_lines()])
        await asyncio.sleep(0)
    return found


async def test_lines_lose_one_end_and_the_mark_before_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = codecs.BOM_UTF8
    content = mark + b"a\r\nb\n\r\nc\r\r\n" + mark + b"d\n\nlast\r"
    expected = [b"a", b"b", b"", b"c\r", mark + b"d", b"", b"last\r"]
    assert await lines_of(content, monkeypatch, tmp_path) == [expected, expected]


def test_json_lines_are_read_with_both() -> None:
    assert record_from_json(codecs.BOM_UTF8 + b'{"data": "a"}\r', Record()).data == b"a"


def test_files_of_settings_are_read_with_both(tmp_path: Path) -> None:
    sources = windows_file(tmp_path / "sources.toml", '[[source]]\nname = "certs"\nbucket = "certs"\ntopic = "certs"\n')
    check_sources_file(sources)
    assert read_sources(str(sources)).names("certs")
    secret = new_secret()
    table = f'[[key]]\nname = "a"\nsha256 = "{digest_of(secret).hex()}"\nscopes = ["role"]\n'
    keys = windows_file(tmp_path / "keys.toml", table)
    key = windows_file(tmp_path / "key", f"{secret}\n")
    assert parse_secret(key.read_bytes()) == secret
    assert read_key(str(key)) == secret
    RoleAccess(CommonSettings(keys_file=str(keys), key_file=str(key)))
    assert main(["key", "new", "b", "--scopes", "read", "--keys-file", str(keys), "-o", "json"]) == 0
    assert keys.read_text(encoding="utf-8").count("[[key]]") == 2


def test_input_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with os.fdopen(os.dup(0), closefd=True) as file:
        os.dup2(descriptor, file.fileno())
        monkeypatch.setattr("sys.stdin", file)
        assert main(["kv", "put", "b", "k", "--cluster", "127.0.0.1:1"]) == 1
    os.close(descriptor)
    assert capsys.readouterr().err == "eddyline: standard input cannot be read: Is a directory\n"
