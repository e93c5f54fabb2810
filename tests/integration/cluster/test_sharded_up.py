"""`eddyline up --shards 2 --delivery 2` as a user runs it: every part told and stopped, topics on both stores, and a folder
that stays what it is."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster.command_process import command, is_alive, run
from tests.support.store.shards import names_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

UP_SECONDS_MAX = 200
NOTICE_SECONDS_MAX = 250
PARTS = ["nats", "store", "store-1", "ingest", "delivery", "delivery-1"]
TOPICS = [names_on(shard, 2, 1)[0] for shard in range(2)]


@asynccontextmanager
async def up(data: Path, *words: str) -> AsyncIterator[list[dict[str, str]]]:
    """A cluster that is up, as what it says of its parts; ended by Ctrl-C, after which none of them is there."""
    process = await asyncio.create_subprocess_exec(
        *command("up", "--free-ports", "--data", str(data), "-o", "json", *words), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        said: list[dict[str, str]] = []
        async with asyncio.timeout(UP_SECONDS_MAX):
            while len([line for line in said if line["event"] == "up"]) < (len(PARTS) if words else 4):
                line = await process.stdout.readline()
                assert line, "it ended"
                said.append(json.loads(line))
        parts = [line for line in said if line["event"] == "up"]
        yield parts
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(UP_SECONDS_MAX):
            await process.stdout.read()
            assert await process.wait() == 0
        assert not [part for part in parts if is_alive(int(part["pid"]))]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_two_stores_and_two_deliveries_are_one_cluster_that_comes_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    where = ("--data", str(data))
    async with up(data, "--shards", "2", "--delivery", "2") as parts:
        assert [part["role"] for part in parts] == PARTS
        assert len({part["address"] for part in parts}) == len(PARTS)
        code, out, _ = await run("status", *where, "-o", "json")
        *statuses, verdict = [json.loads(line) for line in out.splitlines()]
        assert (code, verdict["well"], verdict["troubles"]) == (0, True, [])
        assert [status["role"] for status in statuses] == ["store", "store", "ingest", "delivery", "delivery"]
        assert {status["pid"] for status in statuses} == {part["pid"] for part in parts[1:]}
        assert [status["shard_index"] for status in statuses[:2]] == [0, 1]
        for topic in TOPICS:
            assert (await run("append", topic, "one", "--create", "log", *where))[0] == 0
        after = [json.loads(line) for line in (await run("status", *where, "-o", "json"))[1].splitlines()]
        assert [status["topic_count"] for status in after[:2]] == [1, 1]
    addresses = [part["address"] for part in parts]
    code, _, err = await run("up", "--free-ports", *where)
    assert code == 2
    assert "has its topics on 2 stores, but --shards is 1" in err
    assert "--shards 2" in err
    async with up(data, "--shards", "2", "--delivery", "2") as parts:
        assert [part["address"] for part in parts] == addresses
        for topic in TOPICS:
            code, out, _ = await run("read", topic, *where, "-o", "json")
            assert [json.loads(line)["data"] for line in out.splitlines()] == ["one"]


async def test_folder_of_one_store_opens_as_ever_and_is_not_taken_for_two(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with up(data) as parts:
        assert [part["role"] for part in parts] == ["nats", "store", "ingest", "delivery"]
        assert (await run("append", "t", "one", "--create", "log", "--data", str(data)))[0] == 0
    code, _, err = await run("up", "--free-ports", "--data", str(data), "--shards", "2")
    assert code == 2
    assert "has its topics on 1 store, but --shards is 2" in err
    assert not (data / "store-1").exists()


async def test_store_that_hangs_is_named_and_what_lives_on_the_other_goes_on(tmp_path: Path) -> None:
    where = ("--data", str(tmp_path / "data"))
    async with up(tmp_path / "data", "--shards", "2", "--delivery", "2") as parts:
        for topic in TOPICS:
            assert (await run("topic", "create", topic, *where))[0] == 0
        hung = next(part for part in parts if part["role"] == "store-1")
        os.kill(int(hung["pid"]), signal.SIGSTOP)
        try:
            async with asyncio.TaskGroup() as asking:
                append = asking.create_task(run("append", TOPICS[1], "x", *where))
                listing = asking.create_task(run("topic", "list", *where))
                served = asking.create_task(run("append", TOPICS[0], "x", *where))
                asking.create_task(told_in_status(where))
        finally:
            os.kill(int(hung["pid"]), signal.SIGCONT)
    code, _, said = append.result()
    assert (code, f"NOT_READY: store/1 at {hung['address']}: " in said, "topics of other stores" in said) == (
        1,
        True,
        True,
    )
    code, _, said = listing.result()
    assert (code, f"store shard 1 at {hung['address']} cannot be reached" in said) == (1, True), said
    assert served.result()[0] == 0


async def told_in_status(where: tuple[str, ...]) -> None:
    """Wait until ingest and both deliveries have noticed, as `status` tells it."""
    async with asyncio.timeout(NOTICE_SECONDS_MAX):
        while True:
            code, out, _ = await run("status", *where)
            assert code == 1
            if out.count("serves: store/1 away") == 3:
                break
    rows = out.partition("ROLE ")[2].splitlines()[1:]
    states = {line.split()[0]: line.split()[2] for line in rows if line.startswith("store/")}
    assert states == {"store/0": "ready", "store/1": "away"}, out
