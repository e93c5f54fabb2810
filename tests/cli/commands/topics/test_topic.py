"""Topics through the command: settings as flags, what is shown of them, erasure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.cli.commands.topics.topic_settings import config_change_from_args, kept_text
from eddyline.cli.errors import CommandError
from eddyline.cli.main import parse_arguments
from eddyline.core.errors import TopicFull
from eddyline.core.model.deletion import EraseProgress
from eddyline.core.model.topic import ConfigChange, Discard, Durability, Kind, TopicConfig, TopicInfo
from tests.support.command_line import command_on_a_door, command_on_a_store
from tests.support.store.scripted_shard import ScriptedShard

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = TopicConfig(ttl_ms=86_400_000, cap_records=9, cap_bytes=64 << 20, discard=Discard.REJECT, priority=-3)
INFO = TopicInfo("t", 7, Kind.LOG, CONFIG, 9, 5, "", 1, 4, 5, 320, 2)


def change(line: str) -> ConfigChange:
    return config_change_from_args(parse_arguments(["topic", "update", "t", *line.split()]))


def test_a_flag_that_is_left_out_keeps_its_value() -> None:
    assert change("--ttl 24h") == ConfigChange(ttl_ms=86_400_000)
    assert change("--cap-bytes 0 --cap-records 0 --ttl off") == ConfigChange(ttl_ms=0, cap_records=0, cap_bytes=0)
    assert change("--priority -3") == ConfigChange(priority=-3)
    assert change("--no-priority") == ConfigChange(clear_priority=True)
    assert change("--no-dedupe-node") == ConfigChange(dedupe_node=False)
    assert change("--dedupe-node --durability FSYNC") == ConfigChange(Durability.FSYNC, dedupe_node=True)
    assert change("--discard reject --idempotency-window 1m") == ConfigChange(
        discard=Discard.REJECT, idempotency_window_ms=60_000
    )


async def test_settings_are_made_with_the_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = ScriptedShard({"create_topic": INFO})
    async with command_on_a_door(door, monkeypatch) as command:
        words = [
            "--ttl",
            "24h",
            "--cap-records",
            "9",
            "--cap-bytes",
            "64MiB",
            "--discard",
            "reject",
            "--priority",
            "-3",
        ]
        code, (said,) = await command.run("topic", "create", "t", *words)
    assert (code, said["ttl_ms"], said["discard"], said["priority"]) == (0, 86_400_000, "REJECT", -3)
    assert door.asked[0][1] == ("t", Kind.LOG, CONFIG)


async def test_an_update_asks_for_its_flags_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    door = ScriptedShard({"update_topic": INFO})
    async with command_on_a_door(door, monkeypatch) as command:
        assert await command.text("topic", "update", "t", "--ttl", "24h", "--if-epoch", "7") == (
            0,
            "updated t (configuration 2): it keeps 1d, 9 records, 64MiB, then rejects\n",
        )
    assert door.asked == [("update_topic", ("t", ConfigChange(ttl_ms=86_400_000)), {"if_epoch": 7})]


async def test_topic_get_prints_floors_counts_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_door(ScriptedShard({"get_topic": INFO, "list_topics": [INFO]}), monkeypatch) as command:
        _, (said,) = await command.run("topic", "get", "t")
        _, text = await command.text("topic", "get", "t")
    assert said == {
        "name": "t",
        "kind": "LOG",
        "epoch": 7,
        "head_seq": 9,
        "earliest_seq": 5,
        "evict_floor": 4,
        "record_count": 5,
        "record_bytes": 320,
        "config_version": 2,
        "durability": "DISK",
        "idempotency_window_ms": 120_000,
        "ttl_ms": 86_400_000,
        "cap_records": 9,
        "cap_bytes": 64 << 20,
        "discard": "REJECT",
        "priority": -3,
        "dedupe_node": True,
        "source": "",
        "create_ts_ms": 1,
    }
    assert "ttl_ms: 86400000 (1d)\n" in text
    assert "evict_floor: 4 (retention took all up to it)\n" in text
    assert "source: -\n" in text


async def test_topic_list_prints_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        await command.run("append", "log", "x", "y", "--create", "log")
        _, text = await command.text("topic", "list")
    header, row = (line.split() for line in text.splitlines())
    shown = dict(zip(header, row, strict=False))
    assert (shown["NAME"], shown["FROM"], shown["TO"], shown["KEEPS"]) == ("log", "1", "2", "all")
    assert kept_text(TopicConfig(cap_bytes=1536)) == "1.5KiB"


async def test_an_erasure_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    door = ScriptedShard({"erase_topic": [EraseProgress(0, 9), EraseProgress(9, 9, erased=True)]})
    async with command_on_a_door(door, monkeypatch) as command:
        assert await command.run("topic", "erase", "t", "--if-epoch", "7") == (
            0,
            [{"name": "t", "erased": True, "done_bytes": 9}],
        )
        assert await command.text("topic", "erase", "t") == (
            0,
            "erased: nothing that was deleted from t is on disk any more\n",
        )
    assert door.asked[0] == ("erase_topic", ("t",), {"if_epoch": 7})
    assert capsys.readouterr().err == ""


async def test_an_erasure_that_ends_before_all_is_erased_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    door = ScriptedShard({"erase_topic": [EraseProgress(0, 9)]})
    async with command_on_a_door(door, monkeypatch) as command:
        with pytest.raises(CommandError, match="before all was erased"):
            await command.run("topic", "erase", "t")


async def test_topic_retention_is_updated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        await command.run("topic", "create", "log", "--ttl", "24h", "--cap-records", "9")
        await command.run("append", "log", "a", "b", "c")
        _, (said,) = await command.run("topic", "update", "log", "--ttl", "0", "--cap-records", "1", "--priority", "5")
        assert (said["ttl_ms"], said["cap_records"], said["priority"], said["config_version"]) == (0, 1, 5, 2)
        _, (said,) = await command.run("topic", "update", "log", "--no-priority", "--discard", "reject")
        assert (said["priority"], said["discard"], said["cap_records"]) == (None, "REJECT", 1)
        _, said_read = await command.run("read", "log")
        assert [line.get("gap") or line["seq"] for line in said_read] == ["CAP", 3]
        with pytest.raises(TopicFull):
            await command.run("append", "log", "d")
