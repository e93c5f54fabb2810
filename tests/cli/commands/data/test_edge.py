"""A local fold through the command: followed, and read where there is no cluster."""

from __future__ import annotations

import asyncio
import io
import json
import random
from typing import TYPE_CHECKING

import pytest

from eddyline.cli.command import Context
from eddyline.cli.commands.data.edge_follow import Steps
from eddyline.cli.errors import CommandError
from eddyline.cli.main import parse_arguments
from eddyline.cli.terminal.output import Output
from eddyline.client.local_fold.file import write_base
from eddyline.client.local_fold.follow import FoldStep
from eddyline.client.local_fold.frame import FoldPosition, FoldScope
from eddyline.client.local_fold.local_fold import open_fold
from eddyline.core.records.fold_entry import encode_entry
from eddyline.core.records.record import Op, Record
from eddyline.core.runtime.clock import SystemHost
from eddyline.core.runtime.fs import RealFs
from tests.support.command_line import main
from tests.support.manual_clock import ManualClock, pass_time_until

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.cli.terminal.output import OutputFormat

AS_OF_MS = 1_700_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "t.fold"
    keys = (b"co", b"co.uk", b"com", b"\xff")
    entries = [(key, encode_entry(Record(seq, 5, 0, Op.PUT, key, b"v%d" % seq))) for seq, key in enumerate(keys, 1)]
    write_base(
        RealFs(), made, FoldScope("routes"), FoldPosition(7, 9, AS_OF_MS), entries=entries, snapshot_ms=1
    ).close()
    return made


async def run(*words: str, clock: ManualClock | None = None, output_format: OutputFormat = "json") -> tuple[int, str]:
    stream = io.StringIO()
    arguments = parse_arguments(["edge", *words, "-o", output_format])
    context = Context(Output(output_format, stream=stream), {}, clock or ManualClock(), SystemHost(), random.Random(1))
    return await arguments.run(arguments, context), stream.getvalue()


async def test_values_are_read_without_a_cluster(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = await run("get", "--file", str(path), "co.uk")
    assert (code, json.loads(said)["data"], json.loads(said)["seq"]) == (0, "v2", 2)
    assert await run("get", "--file", str(path), "co", "no", output_format="text") == (1, "co  v1\n")
    error = capsys.readouterr().err
    assert f"KEY_NOT_FOUND: {path} has no value for key 'no' (`eddyline edge range --file {path}` lists keys)" in error


async def test_raw_value_has_no_line_end(path: Path) -> None:
    assert await run("get", "--file", str(path), "co", "--raw", output_format="text") == (0, "v1")


async def test_keys_are_listed_in_byte_order(path: Path) -> None:
    assert await run("range", "--file", str(path), output_format="text") == (0, "co\nco.uk\ncom\n0xff\n")
    _, text = await run(
        "range", "--file", str(path), "co", "--after", "co", "--limit", "1", "--values", output_format="text"
    )
    assert text == "co.uk  v2\n"


async def test_state_prints_its_age(path: Path) -> None:
    clock = ManualClock(AS_OF_MS + 90_000)
    _, said = await run("state", "--file", str(path), clock=clock)
    state = json.loads(said)
    assert state.pop("file_bytes") > 100
    assert state == {"topic": "routes", "epoch": 7, "seq": 9, "entry_count": 4, "as_of_ms": AS_OF_MS, "deleted": False}
    _, text = await run("state", "--file", str(path), clock=clock, output_format="text")
    assert "routes at 9: 4 live keys; caught up with the cluster as of 2023-11-14 22:13:20.000, 90 s ago" in text


async def test_follow_waits_for_a_cluster_and_reports_it_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    async with asyncio.TaskGroup() as group:
        words = ("follow", "routes", "--file", str(path), "--cluster", "127.0.0.1:9")
        following = group.create_task(run(*words, clock=clock, output_format="text"))
        for _ in range(30):
            passing = group.create_task(clock.pass_time(1.0))
            await pass_time_until(passing, clock, 0.1)
        assert not following.done()
        following.cancel()
    assert capsys.readouterr().err.count("reconnecting") == 1
    assert (await run("get", "--file", str(path), "co"))[0] == 0


async def test_unreadable_file_is_one_line(path: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no such file"):
        await run("get", "--file", str(tmp_path / "none"), "k")
    async with open_fold(path, "routes"):
        with pytest.raises(CommandError, match=r"t\.fold\.lock is held by process"):
            await run("follow", "routes", "--file", str(path), "--cluster", "127.0.0.1:9")
    with pytest.raises(CommandError, match="none"):
        await run("follow", "routes", "--file", str(tmp_path / "none" / "f"), "--cluster", "127.0.0.1:9")


def test_a_damaged_file_ends_the_command_with_its_reason(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    assert main(["edge", "range", "--file", str(path)]) == 1
    said = capsys.readouterr().err
    assert f"DATA_CORRUPT: {path}, offset" in said
    assert "--rebuild" in said
    assert main(["edge", "follow", "routes", "--file", str(path), "--cluster", "127.0.0.1:9"]) == 1
    assert "rebuild it from the cluster with --rebuild" in capsys.readouterr().err


def test_foreign_file_is_never_offered_for_rebuild(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = tmp_path / "notes.txt"
    theirs.write_text("mine, and nobody's fold")
    follow = ["edge", "follow", "routes", "--file", str(theirs), "--cluster", "127.0.0.1:9"]
    for words in (["edge", "state", "--file", str(theirs)], follow, [*follow, "--rebuild"]):
        assert main(words) == 1
        said = capsys.readouterr().err
        assert "not a local fold's file" in said
        assert "give another --file" in said
        assert "rebuild" not in said
    assert theirs.read_text() == "mine, and nobody's fold"


def test_error_of_a_small_bound_names_the_options(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["edge", "follow", "routes", "--file", str(path), "--memory", "100", "--cluster", "127.0.0.1:9"]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "MEMORY_FULL" in said
    assert "--memory" in said
    assert "in a moment" not in said


async def test_missing_topic_is_reported_once(path: Path) -> None:
    stream = io.StringIO()
    context = Context(Output("json", stream=stream), {}, ManualClock(), SystemHost(), random.Random(1))
    async with open_fold(path, "routes") as fold:
        steps = Steps(fold, context)
        for step in (FoldStep.DELETED, FoldStep.DELETED, FoldStep.LEVEL, FoldStep.DELETED):
            steps.print_result(step)
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["deleted", "level", "deleted"]
