"""The command line: help with examples, exit codes, errors in one line, verbs against a whole store."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from eddyline.cli.commands.cluster.up import status_command
from eddyline.cli.errors import CommandError, failure_line, known_cause
from eddyline.cli.local_cluster.find import DATA_DEFAULT
from eddyline.cli.main import parse_arguments
from eddyline.cli.terminal import stdin
from eddyline.core.errors import KeyRequired, NotReady, TopicExists, TopicNotFound
from tests.support.command_line import command_on_a_store, main

VERBS = (
    "up",
    "topic create",
    "topic update",
    "topic get",
    "topic list",
    "topic delete",
    "topic erase",
    "append",
    "read",
    "watch",
    "get",
    "ls",
    "history",
    "find",
    "delete",
    "source create",
    "source get",
    "source list",
    "source delete",
    "source compare",
    "status",
    "verify",
    "verify-fold",
    "settle-fold",
    "fold export",
    "fold import",
    "fold list",
    "key new",
    "fsck",
    "demo",
    "drill",
)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*verb.split(), "--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert f"eddyline {verb}" in said.partition("example:")[2]
    assert "--output {text,json}" in said


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nothing",
        "topic",
        "topic create",
        "read",
        "read t --after -1",
        "up --ou json",
        "append t x --nothing",
        "ls t p x",
        "ls t --limit 0",
        "read t --limit 0",
        "status --cluster localhost",
        "status --cluster 127.0.0.1:7701,",
        "watch a b --after 1",
        "watch a --epoch 1",
        "read t --after 1 --epoch -1",
        "watch a --after 1 --start tail",
        "watch a --at-time 1 --from-revision 1",
        "watch a --at-time 1 --start earliest",
        "watch a --at-time yesterday",
        "watch a --from-revision 0",
        "watch a b --from-revision 1",
        "watch a --updates-only --start earliest",
        "watch a --updates-only --after 1",
        "watch a --on-gap mend",
        "append t x --skip 1",
        "topic update t",
        "topic create t --ttl 24",
        "topic create t --cap-bytes 1XB",
        "topic update t --priority 1 --no-priority",
        "topic create t --no-priority",
        "delete t",
        "delete t --before 0",
        "delete t --key a --tag b",
        "delete t --key=",
        "drill --only nothing",
        "find t",
        "find t --time yesterday",
        "find t --time 1 --source-time 1",
        "get t k --at-seq 1 --at-time 1",
        "get t k --at-seq 0 --min-seq 1",
        "history t",
        "verify-fold",
        "fold",
        "fold export",
        "fold import t u",
        "verify",
        "verify s --all",
        "verify s --limit 0",
        *[
            f"{start} {9 * 10**19}"
            for start in (
                "topic create t --cap-records",
                "topic create t --cap-bytes",
                "topic update t --priority",
                "topic delete t --if-epoch",
                "read t --after",
                "read t --limit",
                "get t k --at-time",
                "get t k --min-seq",
                "find t --time",
                "find t --source-time",
                "source compare s --settle-ms",
                "source compare s --limit",
                "verify s --settle-ms",
            )
        ],
        "topic create t --ttl 99999999999999999h",
        "topic create t --priority 1001",
    ],
)
def test_wrong_usage_is_exit_code_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(line.split())
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "name", "wanted"),
    [
        ("append t --key k a b", "values", ["a", "b"]),
        ("append t a --key k b", "values", ["a", "b"]),
        ("append --key k t a", "values", ["a"]),
        ("append t --key k", "values", []),
        ("watch a --start tail b", "topics", ["a", "b"]),
        ("get t k -o json l", "keys", ["k", "l"]),
    ],
)
def test_options_may_stand_between_values(line: str, name: str, wanted: list[str]) -> None:
    assert getattr(parse_arguments(line.split()), name) == wanted


def test_missing_cluster_is_one_line_with_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDDYLINE_ADDRESS", raising=False)
    assert main(["status", "--data", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "eddyline up" in said.err


def test_errors_are_one_line_with_reason_and_advice() -> None:
    assert failure_line(TopicNotFound("no topic 'x'\n")) == (
        "eddyline: TOPIC_NOT_FOUND: no topic 'x' (list topics with `eddyline topic list`, "
        "create one with `eddyline topic create NAME` (add `--kind kv` for a KV topic))"
    )
    assert failure_line(CommandError("broken")) == "eddyline: broken"


def test_status_does_not_advise_itself() -> None:
    assert "eddyline status" in failure_line(NotReady("gone"), verb="read")
    said = failure_line(NotReady("gone"), verb="status")
    assert "eddyline status" not in said
    assert "try again in a moment" in said


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("eddyline 0.")


def test_cause_is_unwrapped_from_groups() -> None:
    error = TopicNotFound("x")
    assert known_cause(ExceptionGroup("g", [ExceptionGroup("h", [error])])) is error
    assert known_cause(ExceptionGroup("g", [error, ValueError()])) is None
    assert known_cause(ValueError()) is None


async def test_verbs_do_their_work_on_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        code, said = await command.run("topic", "create", "kv", "--kind", "kv", "--durability", "fsync")
        assert (code, said[0]["kind"], said[0]["durability"]) == (0, "KV", "FSYNC")
        assert (await command.run("append", "kv", "1", "--key", "a"))[1][0]["last_seq"] == 1
        assert (await command.run("append", "kv", "2", "--key", "b", "--tag", "x"))[0] == 0
        assert (await command.run("append", "kv", "--key", "b", "--op", "delete"))[0] == 0
        _, said = await command.run("read", "kv")
        assert [(line["op"], line["key"]) for line in said] == [("PUT", "a"), ("PUT", "b"), ("DELETE", "b")]
        assert [line["seq"] for line in (await command.run("read", "kv", "--tag", "x"))[1]] == [2]
        assert (await command.run("get", "kv", "a"))[1][0]["data"] == "1"
        assert (await command.run("get", "kv", "a", "b"))[0] == 1
        assert [line["key"] for line in (await command.run("ls", "kv"))[1]] == ["a"]
        assert [line["name"] for line in (await command.run("topic", "list"))[1]] == ["kv"]
        assert (await command.run("topic", "get", "kv"))[1][0]["head_seq"] == 3
        assert (await command.run("topic", "delete", "kv"))[1][0]["deleted"] is True


async def test_keys_are_bytes_and_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["a/b c%2F", "../up", "a:b", "a~b", "é", "?x=1&y#z"]
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        await command.run("topic", "create", "kv", "--kind", "kv")
        for key in keys:
            assert (await command.run("append", "kv", "1", f"--key={key}"))[0] == 0
        assert [line["key"] for line in (await command.run("get", "kv", *keys))[1]] == keys
        assert [line["key"] for line in (await command.run("ls", "kv"))[1]] == sorted(keys, key=str.encode)


async def test_snapshot_of_a_log_is_refused_in_the_commands_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        await command.run("topic", "create", "log")
        with pytest.raises(CommandError, match="log is a log") as caught:
            await command.run("watch", "log", "--start", "snapshot")
        assert "--start tail" in caught.value.advice


async def test_refusals_come_out_as_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        with pytest.raises(TopicNotFound):
            await command.run("append", "missing", "x")
        await command.run("append", "kv", "x", "--key", "k", "--create", "kv")
        with pytest.raises(KeyRequired):
            await command.run("append", "kv", "x")
        with pytest.raises(TopicExists, match="kv exists: kind KV, durability DISK"):
            await command.run("topic", "create", "kv")


async def test_standard_input_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines").write_bytes(b"a\r\nb\n\nlast")
    with (tmp_path / "lines").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert [line async for line in stdin.stdin_lines()] == [b"a", b"b", b"", b"last"]


async def test_standard_input_that_is_no_pipe_has_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/null").open() as nothing:  # noqa: ASYNC230 - opening it waits for nobody
        monkeypatch.setattr("sys.stdin", nothing)
        assert [line async for line in stdin.stdin_lines()] == []
    monkeypatch.setattr("sys.stdin", None)
    assert [line async for line in stdin.stdin_lines()] == []


async def test_status_is_failure_unless_all_are_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        code, said = await command.run("status")
        assert code == 1
        assert [(line["role"], line["reachable"]) for line in said[:-1]] == [
            ("store", True),
            ("ingest", False),
            ("delivery", False),
        ]


async def test_stopping_a_verb_is_its_cancellation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_store(tmp_path, monkeypatch) as command:
        await command.run("append", "log", "x", "--create", "log")
        async with asyncio.TaskGroup() as group:
            following = group.create_task(command.run("read", "log", "--follow"))
            await asyncio.sleep(0)
            following.cancel()


def test_help_notes_that_source_filters_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["source", "create", "--help"])
    assert "a message is copied where any one of them matches" in capsys.readouterr().out


def test_the_command_after_up_finds_the_cluster_that_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(own))
    assert status_command(Path(DATA_DEFAULT)) == "eddyline status"
    assert status_command(Path("/tmp/a b")) == "eddyline status --data '/tmp/a b'"
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(own.parent)
    assert status_command(Path(DATA_DEFAULT)) == f"{own.name}/eddyline status"
