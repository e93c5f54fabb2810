"""Deletes through the command, and the question before them."""

from __future__ import annotations

import asyncio
import os
import pty
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.cli.errors import CommandError
from eddyline.cli.main import parse_arguments
from eddyline.cli.terminal.confirm import confirm
from eddyline.core.errors import InvalidArgument
from eddyline.core.model.deletion import DeleteResult
from eddyline.core.model.topic import Kind, TopicConfig, TopicInfo
from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Op, Record
from tests.support.command_line import command_at, command_on_a_door
from tests.support.store.scripted_shard import ScriptedShard
from tests.support.store.served import served_store
from tests.support.store.simulated import append

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INFO = TopicInfo("t", 7, Kind.LOG, TopicConfig(), 9, 5, "", 1, 4, 5, 320, 2)


def door_of(result: DeleteResult) -> ScriptedShard:
    return ScriptedShard({"get_topic": INFO, "delete_records": result}, kind=Kind.LOG)


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard input is a terminal; the end that a person types at."""
    person, slave = pty.openpty()
    try:
        with os.fdopen(slave, "r") as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            yield person
    finally:
        os.close(person)


@pytest.mark.parametrize(
    ("words", "before_seq", "match"),
    [
        (["--before", "8"], 8, None),
        (["--key", "k"], 0, Match(MatchField.KEY, MatchKind.EQ, b"k")),
        (["--key-prefix", "", "--before", "8"], 8, Match(MatchField.KEY, MatchKind.PREFIX, b"")),
        (["--tag", "ü"], 0, Match(MatchField.TAG, MatchKind.EQ, "ü".encode())),
        (["--tag-prefix", "a:"], 0, Match(MatchField.TAG, MatchKind.PREFIX, b"a:")),
    ],
)
async def test_a_delete_is_of_the_topic_that_is_there(
    words: list[str], before_seq: int, match: Match | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = door_of(DeleteResult(3, 8, 9, 7))
    async with command_on_a_door(door, monkeypatch) as command:
        code, said = await command.run("delete", "t", *words, "--yes")
    assert code == 0
    assert said == [{"topic": "t", "deleted_count": 3, "earliest_seq": 8, "head_seq": 9, "epoch": 7}]
    assert door.asked[-1] == ("delete_records", ("t",), {"epoch": 7, "before_seq": before_seq, "match": match})


async def test_delete_prints_count_and_remainder(monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_door(door_of(DeleteResult(1, 8, 9, 7)), monkeypatch) as command:
        assert await command.text("delete", "t", "--before", "8", "-y") == (
            0,
            "deleted 1 record of t; it now has 8 to 9\n",
        )
    async with command_on_a_door(door_of(DeleteResult(5, 10, 9, 7)), monkeypatch) as command:
        assert await command.text("delete", "t", "--before", "10", "-y") == (
            0,
            "deleted 5 records of t; it is empty now, its head is 9\n",
        )


async def test_delete_by_key_notes_uncounted_live_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_store(tmp_path / "store") as store:
        command = command_at(store.address, monkeypatch)
        await store.link.create_topic("t", Kind.KV, TopicConfig(cap_records=1))
        for key in (b"k2", b"k3"):
            await append(store.link, "t", Batch.from_rows([Record(op=Op.PUT, key=key, data=b"v")]))
        assert (await command.text("get", "t", "k2"))[0] == 0
        assert await command.text("delete", "t", "--key", "k2", "-y") == (
            0,
            "deleted 0 records of t, and what live values matched; its log now has 2 to 2\n",
        )
        assert (await command.text("get", "t", "k2"))[0] == 1
        assert await command.text("delete", "t", "--before", "3", "-y") == (
            0,
            "deleted 1 record of t; its log is empty now, its head is 2\n",
        )
        assert (await command.text("get", "t", "k3"))[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--key", "k2"),
        ("--key-prefix", "k"),
        ("--key-prefix", ""),
        ("--tag", "a:1"),
        ("--tag-prefix", "a:"),
        ("--key", "k", "--before", "4"),
        ("--tag-prefix", "", "--before", "99"),
        ("--before", "99"),
        ("--key", "nobody"),
    ],
)
async def test_a_dry_run_counts_what_the_delete_then_takes(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served_store(tmp_path / "store") as store:
        command = command_at(store.address, monkeypatch)
        await store.link.create_topic("t", Kind.LOG, TopicConfig())
        rows = [Record(key=key, tag=tag, data=b"v") for key in (b"k", b"k2", b"x", None) for tag in ("a:1", "b", None)]
        await append(store.link, "t", Batch.from_rows(rows))
        await store.link.delete_records("t", before_seq=3, match=None)
        code, (dry,) = await command.run("delete", "t", *words, "--dry-run")
        assert (code, dry["dry_run"], dry["is_exact"], dry["earliest_seq"]) == (0, True, True, 3)
        assert (await store.link.get_topic("t")).record_count == 10
        _, (done,) = await command.run("delete", "t", *words, "--yes")
        assert dry["would_delete_count"] == done["deleted_count"]


async def test_a_dry_run_reads_nothing_for_a_bound_and_refuses_what_the_delete_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served_store(tmp_path / "store") as store:
        command = command_at(store.address, monkeypatch)
        await store.link.create_topic("t", Kind.KV, TopicConfig())
        assert (await command.text("delete", "t", "--key", "k", "--dry-run"))[1] == (
            "would delete 0 records of t, and what live values match; nothing was deleted\n"
        )
        for _ in range(3):
            await append(store.link, "t", Batch.from_rows([Record(op=Op.PUT, key=b"k", data=b"v")]))
        assert (await command.text("delete", "t", "--before", "3", "--dry-run"))[1] == (
            "would delete at most 2 records of t; nothing was deleted\n"
        )
        for words in (("--dry-run",), ("--yes",)):
            with pytest.raises(InvalidArgument):
                await command.run("delete", "t", "--tag", "a", *words)


async def test_terminal_prompts_and_accepts_no(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    door = door_of(DeleteResult(3, 8, 9, 7))
    async with command_on_a_door(door, monkeypatch) as command:
        with terminal(monkeypatch) as person:
            os.write(person, b"n\n")
            with pytest.raises(CommandError, match="nothing was done"):
                await command.run("delete", "t", "--key-prefix", "a", "--before", "8")
            assert "delete_records" not in [name for name, _, _ in door.asked]
            os.write(person, b"Yes\n")
            assert (await command.run("delete", "t", "--key-prefix", "a"))[0] == 0
    asked = capsys.readouterr().err
    assert asked.startswith(
        "eddyline: delete what below 8 has a key that starts with 'a' from t, LOG, 5 records, 5 to 9?"
    )


async def test_silent_command_ends_on_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = parse_arguments(["delete", "t", "--before", "8"])
    with terminal(monkeypatch):
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(confirm("sure?", arguments))
            await asyncio.sleep(0)
            asking.cancel()
        assert asking.cancelled()


async def test_script_is_not_prompted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", None)
    await confirm("sure?", parse_arguments(["delete", "t", "--before", "8"]))
    assert capsys.readouterr().err == ""
