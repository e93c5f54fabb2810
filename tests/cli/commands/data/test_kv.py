"""`eddyline kv` against a real ingest: values from everywhere, what it says, what it refuses."""

from __future__ import annotations

import asyncio
import io
import json
import random
from typing import TYPE_CHECKING, Literal

import pytest

from eddyline.cli.command import Context
from eddyline.cli.commands.data.kv import _Stop
from eddyline.cli.errors import CommandError, failure_line
from eddyline.cli.main import parse_arguments
from eddyline.cli.terminal.output import Output
from eddyline.core.errors import ApplyPending, BucketNotCopied, KeyExists, RevisionMismatch, WriteUnknown
from eddyline.core.runtime.clock import SystemClock, SystemHost
from tests.support.cluster.processes import store_server
from tests.support.command_line import command_at
from tests.support.ingest.served import served_ingest
from tests.support.nats.server import running_nats

if TYPE_CHECKING:
    from pathlib import Path


class Shell:
    """Runs `eddyline kv` lines against one ingest."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def __call__(self, *words: str) -> dict[str, object]:
        """The output, as JSON."""
        stream = io.StringIO()
        arguments = parse_arguments(["kv", *words, "-o", "json", "--cluster", self._address])
        context = Context(Output("json", stream=stream), {}, SystemClock(), SystemHost(), random.Random(1))
        assert await arguments.run(arguments, context) == 0
        said: dict[str, object] = json.loads(stream.getvalue())
        return said


async def test_values_from_argument_file_and_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "value"
    file.write_bytes(b"of a file\n\xff")
    with running_nats(tmp_path / "nats") as server:
        async with store_server(tmp_path / "store") as store, served_ingest(server.url, store, "b") as served:
            bucket = await served.make_bucket()
            run = Shell(served.address)
            created = await run("create", "b", "a/b", "1")
            assert (created["revision"], created["applied_sources"]) == (1, [])
            with pytest.raises(BucketNotCopied):
                await run("put", "b", "a/b", "2", "--wait-applied")
            await served.copies()
            assert (await run("put", "b", "a/b", "--file", str(file), "--wait-applied"))["applied_sources"] == ["b"]
            assert (await bucket.get("a/b")).value == b"of a file\n\xff"
            with pytest.raises(KeyExists):
                await run("create", "b", "a/b", "1")
            with file.open() as stdin:
                monkeypatch.setattr("sys.stdin", stdin)
                await run("update", "b", "a/b", "--revision", "2")
            with pytest.raises(RevisionMismatch):
                await run("update", "b", "a/b", "", "--revision", "2")
            await run("update", "b", "a/b", "", "--revision", "3")
            assert (await bucket.get("a/b")).value in (None, b"")
            assert (await run("delete", "b", "a/b", "--revision", "4", "--wait-applied", "--source", "b"))[
                "revision"
            ] == 5
            assert (await run("purge", "b", "a/b"))["revision"] == 6
            assert (await bucket.status()).values == 1


@pytest.mark.parametrize("output", ["text", "json"])
async def test_interrupted_wait_reports_the_write_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], output: Literal["text", "json"]
) -> None:
    noted = asyncio.Event()

    class NotedStop(_Stop):
        def note(self, revision: int) -> None:
            super().note(revision)
            noted.set()

    monkeypatch.setattr("eddyline.cli.commands.data.kv._Stop", NotedStop)
    with running_nats(tmp_path / "nats") as server:
        async with store_server(tmp_path / "store") as store, served_ingest(server.url, store, "b") as served:
            bucket = await served.make_bucket()
            await served.copies()
            await served.client.sources.pause("b")
            stream = io.StringIO()
            arguments = parse_arguments(["kv", "put", "b", "k", "1", "--wait-applied", "--cluster", served.address])
            context = Context(Output(output, stream=stream), {}, SystemClock(), SystemHost(), random.Random(1))
            async with asyncio.TaskGroup() as group:
                put = group.create_task(arguments.run(arguments, context))
                await noted.wait()
                put.cancel()
            assert put.cancelled()
            assert (await bucket.get("k")).value == b"1"
    text = "written at revision 1, not applied yet: do not repeat it"
    if output == "text":
        assert (stream.getvalue(), capsys.readouterr().err) == ("", f"eddyline: {text}\n")
        return
    assert json.loads(stream.getvalue()) == {
        "bucket": "b",
        "key": "k",
        "reason": "APPLY_PENDING",
        "revision": 1,
        "message": text,
    }


async def test_get_of_a_copied_key_prints_nats_revision_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    value = bytes(range(256))
    (tmp_path / "value").write_bytes(value)
    with running_nats(tmp_path / "nats") as server:
        async with store_server(tmp_path / "store") as store, served_ingest(server.url, store, "b") as served:
            bucket = await served.make_bucket()
            await bucket.put("other", b"1")
            await bucket.put("k", b"old")
            command = command_at(store, monkeypatch, ingest=served.address)
            with pytest.raises(CommandError, match="no source copies bucket b"):
                await command.run("kv", "get", "b", "k")
            await served.copies()
            put = ("kv", "put", "b", "k", "--file", str(tmp_path / "value"), "--wait-applied")
            assert (await command.run(*put))[0] == 0
            _, (entry,) = await command.run("kv", "get", "b", "k")
            _, raw = await command.text("kv", "get", "b", "k", "--raw")
            _, revisions = await command.run("history", "b", "k")
            _, history = await command.text("history", "b", "k")
            _, (of_topic,) = await command.run("get", "b", "k")
            assert (await command.run("kv", "get", "b", "none"))[0] == 1
            nats_time = (await bucket.get("k")).revision
    assert nats_time == 3
    assert (entry["revision"], entry["version"], entry["source"], entry["topic"]) == (3, 3, "b", "b")
    assert entry["time_ns"] == entry["source_ts_ns"]
    assert raw.encode("utf-8", "surrogateescape") == value
    assert of_topic["version"] == 3
    assert revisions[-1]["version"] == 3
    assert "PUT     revision 3 of 20" in history.splitlines()[-1]
    assert "'none' of bucket b has no value in b (`eddyline ls TOPIC` lists keys)" in capsys.readouterr().err


def test_a_file_that_is_too_long_or_missing_is_refused(tmp_path: Path) -> None:
    arguments = parse_arguments(["kv", "put", "b", "k", "--file", str(tmp_path / "none")])
    coroutine = arguments.run(arguments, None)
    with pytest.raises(CommandError, match="cannot be read"):
        coroutine.send(None)


@pytest.mark.parametrize(
    "line",
    [
        "update b k v",
        "update b k v --revision 0",
        "put b k v --ttl 5s",
        "put b k v --source s",
        "put b k v --file f",
        "put b k v --timeout 0",
        "delete b",
    ],
)
def test_wrong_usage_is_refused(line: str) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["kv", *line.split()])


def test_a_write_that_is_done_or_may_be_is_not_advised_to_be_repeated() -> None:
    assert "do not repeat it" in failure_line(ApplyPending("written", revision=7))
    assert "before a retry" in failure_line(WriteUnknown("no answer"))
