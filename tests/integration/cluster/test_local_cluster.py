"""`eddyline up`, `demo --once` and `drill --short` as a user runs them: real processes, killed and stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster.command_process import command, is_alive, run
from tests.support.hang import HANG_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.integration

UP_SECONDS_MAX = 200
ROLES = {"nats", "store", "ingest", "delivery"}


class Up:
    """A running `eddyline up -o json`."""

    def __init__(self, process: asyncio.subprocess.Process, data: Path) -> None:
        self.process = process
        self.data = data
        self.pids: dict[str, int] = {}
        self.addresses: dict[str, str] = {}

    async def until_up(self) -> None:
        """Read until every part is reported as running."""
        while self.pids.keys() != ROLES:
            line = await self.line()
            self.pids[line["role"]] = int(line["pid"])
            self.addresses[line["role"]] = line["address"]

    async def line(self) -> dict[str, str]:
        """The next line it says."""
        assert self.process.stdout is not None
        async with asyncio.timeout(UP_SECONDS_MAX):
            said = await self.process.stdout.readline()
        assert said, "it ended"
        line: dict[str, str] = json.loads(said)
        return line

    async def end(self, number: signal.Signals) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        async with asyncio.timeout(UP_SECONDS_MAX):
            assert self.process.stdout is not None
            await self.process.stdout.read()
            return await self.process.wait()


@asynccontextmanager
async def up(data: Path) -> AsyncIterator[Up]:
    process = await asyncio.create_subprocess_exec(
        *command("up", "--free-ports", "--data", str(data), "-o", "json"), stdout=asyncio.subprocess.PIPE
    )
    running = Up(process, data)
    try:
        yield running
    finally:
        if process.returncode is None:
            await running.end(signal.SIGKILL)


async def until_gone(pids: list[int]) -> None:
    """Wait until none of the processes is there."""
    async with asyncio.timeout(HANG_S):
        for pid in pids:
            while is_alive(pid):  # noqa: ASYNC110 - other processes end: there is no event
                await asyncio.sleep(0.02)


async def test_up_serves_names_its_holder_and_stops_in_order(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with up(data) as cluster:
        await cluster.until_up()
        code, out, _ = await run("status", "--data", str(data), "-o", "json")
        assert code == 0
        assert {json.loads(line)["role"]: json.loads(line)["pid"] for line in out.splitlines()[:-1]} == {
            role: pid for role, pid in cluster.pids.items() if role != "nats"
        }
        code, out, err = await run("up", "--data", str(data))
        assert code == 1
        assert f"in use by pid {cluster.process.pid}" in err
        assert err.count("\n") == 1
        assert await cluster.end(signal.SIGINT) == 0
        await until_gone(list(cluster.pids.values()))


async def test_restarted_cluster_has_its_ports_and_its_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with up(data) as cluster:
        await cluster.until_up()
        assert (await run("append", "kv", "v", "--key", "k", "--create", "kv", "--data", str(data)))[0] == 0
        assert await cluster.end(signal.SIGTERM) == 0
    first = cluster.addresses
    async with up(data) as cluster:
        await cluster.until_up()
        assert cluster.addresses == first
        assert (await run("get", "kv", "k", "--data", str(data)))[1] == "v\n"
        await cluster.end(signal.SIGINT)


async def test_part_that_is_killed_comes_back_and_a_watch_goes_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with up(data) as cluster:
        await cluster.until_up()
        append = ("append", "log", "--create", "log", "--data", str(data))
        assert (await run(*append, "one"))[0] == 0
        watch = await asyncio.create_subprocess_exec(
            *command("watch", "log", "--start", "earliest", "--data", str(data), "-o", "json"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert watch.stdout is not None
        assert json.loads(await watch.stdout.readline())["data"] == "one"
        for role in ("delivery", "store"):
            os.kill(cluster.pids[role], signal.SIGKILL)
            while (line := await cluster.line())["event"] != "ready":
                assert line["role"] == role
        assert (await run(*append, "two"))[0] == 0
        async with asyncio.timeout(UP_SECONDS_MAX):
            said = [json.loads(await watch.stdout.readline()) for _ in range(1)]
            while "data" not in said[-1]:
                said.append(json.loads(await watch.stdout.readline()))
        assert said[-1]["data"] == "two"
        watch.send_signal(signal.SIGINT)
        assert await watch.wait() == 130
        await cluster.end(signal.SIGINT)


async def test_parts_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    async with up(tmp_path / "data") as cluster:
        await cluster.until_up()
        await cluster.end(signal.SIGKILL)
        await until_gone(list(cluster.pids.values()))


async def test_lines_through_pipes_and_a_reader_that_goes_away(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    async with up(tmp_path / "data") as cluster:
        await cluster.until_up()
        eddyline = f"{sys.executable} -m eddyline.cli"
        script = (
            f"seq 5000 | {eddyline} append a --create log --data {data} && "
            f"{eddyline} read a -o json --data {data} | {eddyline} append b --json --create log --data {data} && "
            f"{eddyline} read b --data {data} | head -1"
        )
        shell = await asyncio.create_subprocess_exec(
            "bash", "-o", "pipefail", "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await shell.communicate()
        assert (shell.returncode, err.decode()) == (0, "")
        lines = out.decode().splitlines()
        assert lines[:2] == ["appended 5000 lines, 1 to 5000"] * 2
        assert lines[2].endswith("APPEND  1")
        await cluster.end(signal.SIGINT)


async def test_append_of_standard_input_survives_a_kill_of_the_store(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    async with up(tmp_path / "data") as cluster:
        await cluster.until_up()
        append = await asyncio.create_subprocess_exec(
            *command("append", "log", "--create", "log", "--data", data),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert append.stdin is not None
        append.stdin.writelines(b"%d\n" % number for number in range(20_000))
        await append.stdin.drain()
        for _ in range(2):
            os.kill(cluster.pids["store"], signal.SIGKILL)
            append.stdin.write(b"a line while it is away\n")
            while (line := await cluster.line())["event"] != "ready" or line["role"] != "store":
                cluster.pids["store"] = int(line["pid"]) or cluster.pids["store"]
        append.stdin.write(b"last\n")
        append.stdin.close()
        async with asyncio.timeout(UP_SECONDS_MAX):
            assert await append.wait() == 0
        _, out, _ = await run("read", "log", "-o", "json", "--data", data)
        away = "a line while it is away"
        said = [str(json.loads(line)["data"]) for line in out.splitlines()]
        assert said == [*map(str, range(20_000)), away, away, "last"]
        await cluster.end(signal.SIGINT)


async def test_append_that_is_interrupted_or_terminated_states_how_much_is_in(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    async with up(tmp_path / "data") as cluster:
        await cluster.until_up()
        for count, (number, code) in enumerate(((signal.SIGINT, 130), (signal.SIGTERM, 143)), 1):
            append = await asyncio.create_subprocess_exec(
                *command("append", "log", "--create", "log", "--data", data),
                stdin=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            assert append.stdin is not None
            assert append.stderr is not None
            append.stdin.write(b"x\n")
            follow = await asyncio.create_subprocess_exec(
                *command("read", "log", "--follow", "--limit", str(count), "--data", data),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            while await follow.wait():
                # The topic was not there yet.
                follow = await asyncio.create_subprocess_exec(
                    *command("read", "log", "--follow", "--limit", str(count), "--data", data),
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                )
            append.send_signal(number)
            said = b"eddyline: stopped: 1 line is acknowledged (continue with the same input and --skip 1)\n"
            assert await append.stderr.read() == said
            assert await append.wait() == code
        await cluster.end(signal.SIGINT)


async def test_source_that_is_there_is_reported_as_unchanged(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    async with up(tmp_path / "data") as cluster:
        await cluster.until_up()
        create = ("source", "create", "certs", "--data", data)
        assert (await run(*create))[1].startswith("created certs: ")
        assert (await run(*create))[1].startswith("certs exists already, unchanged: ")
        code, _, err = await run(*create, "--bucket", "other")
        assert (code, "SOURCE_EXISTS" in err) == (1, True)
        await cluster.end(signal.SIGINT)


async def test_sources_that_ingest_refuses_end_the_start_with_its_words(tmp_path: Path) -> None:
    sources = tmp_path / "sources.toml"
    sources.write_text('[[source]]\nname = "a"\n')
    code, _, err = await run("up", "--free-ports", "--data", str(tmp_path / "data"), "--sources", str(sources))
    assert code == 1
    assert "ingest fails at each start: eddyline ingest: " in err
    assert "sources.toml" in err


async def test_demo_proves_itself_and_does_not_put_equal_keys_again(tmp_path: Path) -> None:
    words = ("demo", "--once", "--free-ports", "--data", str(tmp_path / "data"), "-o", "json")
    code, out, _ = await run(*words)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert (lines[-1]["event"], lines[-1]["equal"]) == ("summary", True)
    assert lines[-1]["changes_seen"] >= lines[-1]["changes"] > 10
    code, out, _ = await run(*words)
    loaded = {line["bucket"]: line for line in map(json.loads, out.splitlines()) if line["event"] == "loaded"}
    assert code == 0
    assert loaded["certs"]["put"] == 0
    assert loaded["routes"]["put"] < loaded["routes"]["keys"] / 10


@pytest.mark.timeout(180)
async def test_short_drill_finds_no_loss(tmp_path: Path) -> None:
    code, out, _ = await run("drill", "--short", "--rounds", "1", "-o", "json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0, out
    names = [line["name"] for line in lines[:-1]]
    assert names[:6] == ["store", "ingest", "delivery", "nats", "all", "overrun"]
    assert names[6:10] == ["emptied", "rollback", "stalled", "takeover"]
    assert sorted(names[10:]) == ["checkpoint", "clock", "disk", "merge", "rewrite"]
    assert lines[-1]["failed"] == 0
    counts = {line["name"]: line["counts"] for line in lines[:-1]}
    assert counts["takeover"]["unapplied_at_kill_max"] > 0
    for what in ("lost_revisions", "kept_keys", "resynced_records"):
        assert counts["rollback"][f"behind_{what}"] > 0
        assert counts["rollback"][f"past_{what}"] > 0


@pytest.mark.timeout(240)
async def test_drill_of_a_killed_nats_leader_finds_no_loss(tmp_path: Path) -> None:
    code, out, _ = await run("drill", "--only", "leader", "--rounds", "1", "-o", "json")
    line, summary = [json.loads(line) for line in out.splitlines()]
    assert code == 0, out
    assert (line["name"], line["ok"], line["kills"], line["gaps"]) == ("leader", True, 1, 0)
    assert line["revisions"] > 0
    assert line["counts"]["heal_s_max"] > 0
    assert summary["failed"] == 0
