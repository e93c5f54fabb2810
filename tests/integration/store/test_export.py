"""`eddyline export` and `python -m eddyline.store export` on real stores: each way to end, and the run after it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from eddyline.cli.command import Context
from eddyline.cli.errors import CommandError
from eddyline.cli.main import parse_arguments
from eddyline.cli.terminal.output import Output
from eddyline.client.connect import connect
from eddyline.core.errors import TopicNotFound
from eddyline.core.model.topic import Kind
from eddyline.core.runtime.clock import SystemClock, SystemHost
from tests.support.cluster.processes import KillableStore
from tests.support.spark.topics import SEALS_OFTEN, append_all, plain_records, store_and_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.integration

END_S = 120
Lines = list[dict[str, object]]


async def export(topic: str, out: Path, address: str) -> tuple[int, Lines]:
    """The verb in this process: its exit code, and its lines of JSON."""
    stream = io.StringIO()
    arguments = parse_arguments(["export", topic, "--out", str(out), "--cluster", address, "-o", "json"])
    context = Context(
        output=Output("json", stream=stream),
        environ={},
        clock=SystemClock(),
        host=SystemHost(),
        random_source=random.Random(1),
    )
    code: int = await arguments.run(arguments, context)
    return code, [json.loads(line) for line in stream.getvalue().splitlines()]


@asynccontextmanager
async def started(*words: str | Path) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    program = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe)
    try:
        yield program
    finally:
        if program.returncode is None:
            program.kill()
        await program.communicate()


async def run(*words: str | Path) -> tuple[int, Lines, str]:
    """A program: its exit code, its lines of JSON, its standard error."""
    async with started(*words, "-o", "json") as program, asyncio.timeout(END_S):
        out, err = await program.communicate()
    assert program.returncode is not None
    return program.returncode, [json.loads(line) for line in out.splitlines()], err.decode()


def seqs_in(out: Path) -> list[int]:
    tables = [pq.ParquetFile(path).read(["seq"]) for path in sorted(out.glob("topic=*/day=*/*.parquet"))]
    return sorted(seq for table in tables for seq in table.column("seq").to_pylist())


def manifests_in(out: Path) -> list[Path]:
    return sorted(out.glob("_eddyline/*/*.manifest.json"))


async def test_second_run_adds_what_came_since(tmp_path: Path) -> None:
    out = tmp_path / "lake"
    async with store_and_client(tmp_path / "store") as (address, client):
        await client.create_topic("orders", Kind.LOG)
        await append_all(client, "orders", plain_records(3_000))
        code, (first,) = await export("orders", out, address)
        assert (code, first["rows"], first["error"]) == (0, 3_000, "")
        await append_all(client, "orders", plain_records(10))
        code, (second,) = await export("orders", out, address)
        assert (code, second["first_seq"], second["end_seq"], second["rows"]) == (0, 3_001, 3_011, 10)
        code, (third,) = await export("orders", out, address)
        assert (code, third["rows"], third["files"]) == (0, 0, 0)
    assert seqs_in(out) == list(range(1, 3_011))
    assert len(manifests_in(out)) == 2


async def test_disk_that_refuses_a_file_leaves_no_manifest_and_the_next_run_makes_up_for_it(tmp_path: Path) -> None:
    out = tmp_path / "lake"
    async with store_and_client(tmp_path / "store") as (address, client):
        await client.create_topic("orders", Kind.LOG)
        await append_all(client, "orders", plain_records(3_000))
        # the largest file that the process may write, in KiB: the disk refuses in the middle of a file
        small = ("bash", "-c", 'ulimit -f 16; exec "$@"', "bash", sys.executable, "-m", "eddyline.cli", "export")
        code, (failed,), err = await run(*small, "orders", "--out", out, "--cluster", address)
        assert (code, failed["error"], manifests_in(out), list(out.rglob("*.tmp"))) == (1, "OSError", [], [])
        assert err.count("\n") == 1
        code, (done,) = await export("orders", out, address)
        assert (code, done["rows"]) == (0, 3_000)
    assert seqs_in(out) == list(range(1, 3_001))


async def test_folder_that_holds_something_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "lake"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    async with store_and_client(tmp_path / "store") as (address, client):
        await client.create_topic("orders", Kind.LOG)
        with pytest.raises(CommandError, match="TARGET_NOT_EMPTY"):
            await export("orders", out, address)
        for missing in ("nothing", "no.*"):
            with pytest.raises(TopicNotFound):
                await export(missing, tmp_path / "new", address)
    assert [path.name for path in out.iterdir()] == ["notes.txt"]
    assert not (tmp_path / "new").exists()


async def test_folder_that_cannot_be_one_is_reported_plainly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    async with store_and_client(tmp_path / "store") as (address, client):
        await client.create_topic("orders", Kind.LOG)
        await append_all(client, "orders", plain_records(3))
        for out in (tmp_path / "notes.txt", Path("/dev/full")):
            said = rf"^{out} cannot be written: Not a directory$"
            with pytest.raises(CommandError, match=said) as refused:
                await export("orders", out, address)
            assert "--out" in refused.value.advice
        below = tmp_path / "notes.txt" / "lake"
        code, (done,) = await export("orders", below, address)
        assert (code, done["error"]) == (1, "NotADirectoryError")
        told = capsys.readouterr().err.splitlines()[-1]
        assert told.startswith("eddyline: orders: ")
        assert "Not a directory" in told
        assert "--out" in told
        assert "Error" not in told
    assert (tmp_path / "notes.txt").read_text() == "mine"


async def test_topic_that_is_made_again_begins_again_and_reports_it(tmp_path: Path) -> None:
    out = tmp_path / "lake"
    async with store_and_client(tmp_path / "store") as (address, client):
        await client.create_topic("orders", Kind.LOG)
        await append_all(client, "orders", plain_records(5))
        _, (first,) = await export("orders", out, address)
        await client.delete_topic("orders")
        with pytest.raises(TopicNotFound):
            await export("orders", out, address)
        await client.create_topic("orders", Kind.LOG)
        await append_all(client, "orders", plain_records(3))
        code, (second,) = await export("orders", out, address)
    assert (code, second["rows"], second["recreated_from"], len(manifests_in(out))) == (0, 3, first["epoch"], 2)


async def test_ctrl_c_ends_it_while_the_store_hangs_and_the_next_run_works(tmp_path: Path) -> None:
    out = tmp_path / "lake"
    with KillableStore(tmp_path / "store", **SEALS_OFTEN) as store:
        async with connect(store.address) as client:
            await client.create_topic("orders", Kind.LOG)
            await append_all(client, "orders", plain_records(100))
        store.freeze()
        command = (sys.executable, "-m", "eddyline.cli", "export", "orders", "--out", out, "--cluster", store.address)
        async with started(*command) as program, asyncio.timeout(END_S):
            # its own thread and those of gRPC are there once it has begun
            while len(os.listdir(f"/proc/{program.pid}/task")) < 3:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
            program.send_signal(signal.SIGINT)
            await program.wait()
        store.thaw()
        assert (program.returncode, manifests_in(out)) == (130, [])
        code, (done,) = await export("orders", out, store.address)
        assert (code, done["rows"]) == (0, 100)


async def test_stopped_store_is_exported_as_a_running_one(tmp_path: Path) -> None:
    running, stopped, data = tmp_path / "running", tmp_path / "stopped", tmp_path / "store"
    program = (sys.executable, "-m", "eddyline.store", "export")
    async with store_and_client(data) as (address, client):
        await client.create_topic("orders", Kind.LOG)
        await append_all(client, "orders", plain_records(3_000))
        await export("orders", running, address)
        code, lines, err = await run(*program, data, "orders", "--out", stopped)
        assert (code, lines, err.count("\n")) == (2, [], 1), err
    code, (done,), _ = await run(*program, data, "orders", "--out", stopped)
    assert (code, done["rows"], seqs_in(stopped)) == (0, 3_000, seqs_in(running))
    unsaid = tmp_path / "unsaid"
    code, lines, err = await run("sh", "-c", 'exec "$@" > /dev/full', "sh", *program, data, "orders", "--out", unsaid)
    assert (code, lines, seqs_in(unsaid)) == (1, [], seqs_in(running))
    assert err.splitlines()[-1] == "eddyline export: standard output cannot be written: No space left on device"
    assert "Traceback" not in err
    code, lines, err = await run(*program, tmp_path, "orders", "--out", stopped)
    assert (code, lines) == (2, [])
    assert "is not a data directory" in err
