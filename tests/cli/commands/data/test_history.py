"""Histories, values and times of the past, and checks of folds, through the command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.cli.terminal.progress import EVERY_S, SAME_EVERY_S, ProgressReporter, share
from eddyline.core.model.fold_check import FoldCheckProgress, FoldSettled, FoldVerdict
from eddyline.core.model.read import EntryPage, FoldState, SeqFound
from eddyline.core.model.topic import Kind, TopicConfig, TopicInfo
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason, Op, Record
from tests.support.command_line import command_on_a_door, command_on_a_store
from tests.support.manual_clock import ManualClock
from tests.support.store.scripted_shard import ScriptedShard

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

INFO = TopicInfo("t", 7, Kind.KV, TopicConfig(), 9, 5, "", 1, 4, 5, 320, 2)
STATE = FoldState(9, 7)
EMPTY = {
    "history t 99": "the log of t keeps no record of key '99'",
    "read t": "the log of t keeps no record",
    "read t --tag x": "the log of t keeps no record that these filters select",
    "ls t": "t has no live key",
    "ls t a": "t has no live key that begins with 'a'",
}
REVISIONS = Batch.from_rows([Record(op=Op.PUT, key=b"k", data=b"1"), Record(op=Op.DELETE, key=b"k")]).with_seqs(5, 9)


async def test_a_history_is_oldest_first_with_gaps_in_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    door = ScriptedShard({"get_topic": INFO, "key_history": [Gap(1, 4, GapReason.CAP), REVISIONS]})
    async with command_on_a_door(door, monkeypatch) as command:
        code, said = await command.run("history", "t", "k", "--after", "0", "--limit", "9")
        _, text = await command.text("history", "t", "k")
    assert code == 0
    assert said[0] == {"gap": "CAP", "first_seq": 1, "last_seq": 4}
    assert [(line["seq"], line["op"]) for line in said[1:]] == [(5, "PUT"), (6, "DELETE")]
    assert "GAP  CAP: lost 1 to 4" in text.splitlines()[0]
    asked = [call for call in door.asked if call[0] == "key_history"]
    assert asked[0] == ("key_history", ("t", b"k"), {"after_seq": 0, "limit": 9, "epoch": 7})


async def test_as_of_prints_past_values(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    entry = Record(seq=3, ts_ms=9, op=Op.PUT, key=b"k", data=b"v")
    door = ScriptedShard({"entry_at": EntryPage(STATE, (entry,))})
    async with command_on_a_door(door, monkeypatch) as command:
        code, said = await command.run("get", "t", "k", "l", "--at-seq", "0")
        assert (code, len(said), said[0]["data"], said[0]["fold_seq"]) == (0, 2, "v", 9)
        await command.run("get", "t", "k", "--at-time", "1970-01-01T00:00:01.5Z")
        door.scripts["entry_at"] = EntryPage(STATE, (None,))
        assert await command.text("get", "t", "k", "--at-time", "1") == (1, "")
    error = capsys.readouterr().err
    assert "t had no value for key 'k' after record 9 (`eddyline history t k` prints its revisions)" in error
    assert [options for _, _, options in door.asked] == [
        {"at_seq": 0},
        {"at_seq": 0},
        {"at_time_ms": 1_500},
        {"at_time_ms": 1},
    ]


async def test_verbs_that_find_no_record_say_so_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        await command.run("topic", "create", "t", "--kind", "kv")
        for words, notice in EMPTY.items():
            assert await command.run(*words.split()) == (0, [])
            assert capsys.readouterr().err == f"eddyline: {notice}\n"
        assert (await command.run("get", "t", "99"))[0] == 1
    assert capsys.readouterr().err == (
        "eddyline: KEY_NOT_FOUND: t has no value for key '99' (`eddyline ls t` lists keys)\n"
    )


async def test_find_by_time_or_time_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    door = ScriptedShard({"find_seq": SeqFound(6, True, 9, 5, 7)})
    async with command_on_a_door(door, monkeypatch) as command:
        assert await command.text("find", "t", "--time", "1970-01-01T00:00:01.0001Z") == (
            0,
            "6: `eddyline read t --after 5` starts with it\n",
        )
        door.scripts["find_seq"] = SeqFound(10, False, 9, 5, 7)
        code, said = await command.run("find", "t", "--source-time", "-5")
    assert code == 1
    assert said == [{"topic": "t", "seq": 10, "found": False, "head_seq": 9, "earliest_seq": 5, "epoch": 7}]
    assert [options for _, _, options in door.asked] == [
        {"epoch": 0, "commit_time_ms": 1_001, "source_time_ns": None},
        {"epoch": 0, "commit_time_ms": None, "source_time_ns": -5},
    ]


async def test_a_check_that_finds_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    door = ScriptedShard({"verify_fold": [FoldCheckProgress(3, 9), FoldVerdict(9, 0, 7)]})
    async with command_on_a_door(door, monkeypatch) as command:
        assert await command.text("verify-fold", "t") == (0, "t: 7 entries, equal (at 9, from the log)\n")


async def test_a_check_that_finds_something_fails_with_a_line_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = FoldVerdict(9, 2, 7, 2, ("key 6b differs", "key 6c is missing"))
    async with command_on_a_door(ScriptedShard({"verify_fold": [verdict]}), monkeypatch) as command:
        code, said = await command.run("verify-fold", "t")
        _, text = await command.text("verify-fold", "t")
    assert code == 1
    assert said[:2] == [{"topic": "t", "finding": finding} for finding in verdict.findings]
    assert (said[2]["equal"], said[2]["differing_count"], said[2]["base_seq"]) == (False, 2, 2)
    assert text.splitlines()[2] == "t: 2 of 7 entries differ (at 9, from the base at 2 and the log)"


async def test_settle_fold_prints_possible_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    door = ScriptedShard({"get_topic": INFO, "settle_fold": FoldSettled(True, 2, 5, STATE)})
    async with command_on_a_door(door, monkeypatch) as command:
        _, text = await command.text("settle-fold", "t", "--yes")
        settled = "t: settled at 9, from the base at 2 and the log from 5 on"
        assert text == f"{settled}; values written only by 3 to 4 are missing\n"
        door.scripts["settle_fold"] = FoldSettled(False, 0, 10, STATE)
        code, said = await command.run("settle-fold", "t", "--yes")
    assert (code, said[0]["settled"], said[0]["fold_seq"]) == (0, False, 9)
    assert door.asked[-1] == ("settle_fold", ("t",), {"if_epoch": 7})


def test_unchanged_progress_is_not_repeated_soon(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    progress = ProgressReporter(clock)
    for text in ("half", "half", "all"):
        clock.advance(EVERY_S)
        progress.tell(text)
    clock.advance(SAME_EVERY_S)
    progress.tell("all")
    assert capsys.readouterr().err.splitlines() == ["eddyline: half", "eddyline: all", "eddyline: all"]


def test_progress_is_printed_at_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    progress = ProgressReporter(clock)
    progress.tell("soon done")
    clock.advance(EVERY_S)
    progress.tell("half")
    progress.tell("a bit more")
    assert capsys.readouterr().err == "eddyline: half\n"
    assert [share(1, 3), share(9, 3), share(0, 0)] == ["33%", "100%", "…"]
