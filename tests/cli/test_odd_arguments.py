"""Arguments that are no UTF-8: the system gives them with surrogates, and they are the bytes that were meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.command_line import command_on_a_store

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

KEY = b"a\xff".decode(errors="surrogateescape")


async def test_keys_that_are_no_text_are_written_read_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with command_on_a_store(tmp_path / "data", monkeypatch) as command:
        assert (await command.run("topic", "create", "odd", "--kind", "kv"))[0] == 0
        assert (await command.run("append", "odd", "--key", KEY, "v"))[0] == 0
        code, (entry,) = await command.run("get", "odd", KEY)
        assert (code, entry["data"], entry["key_base64"]) == (0, "v", "Yf8=")
        assert len((await command.run("ls", "odd", KEY))[1]) == 1
        assert len((await command.run("history", "odd", KEY))[1]) >= 1
        assert (await command.run("delete", "odd", "--key", KEY, "--yes"))[0] == 0
        assert (await command.run("get", "odd", KEY))[0] == 1
