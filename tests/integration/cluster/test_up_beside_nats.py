"""`eddyline up --nats` as a user runs it beside a NATS that he has: TLS and credentials, restarts, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import nats
import pytest
from nats.js.api import KeyValueConfig

from eddyline.client import connect
from tests.support.certificates import Authority
from tests.support.cluster.command_process import command, run
from tests.support.nats.server import running_nats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nats.js.kv import KeyValue

    from eddyline.client import Client

pytestmark = pytest.mark.integration

HANGS_S: Final = 60
PASSWORD: Final = "hush-hush"
USERS: Final = f'authorization {{ users: [{{ user: "ingest", password: "{PASSWORD}" }}] }}\n'
PARTS: Final = {"store", "ingest", "delivery"}


@asynccontextmanager
async def up(data: Path, *words: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, int], str]]:
    """A running `eddyline up`: its process, the pids of its parts, and what it said by then."""
    process = await asyncio.create_subprocess_exec(
        *command("up", "--free-ports", "--data", str(data), "-o", "json", *words), stdout=asyncio.subprocess.PIPE
    )
    try:
        pids: dict[str, int] = {}
        said = ""
        assert process.stdout is not None
        async with asyncio.timeout(HANGS_S):
            while pids.keys() != PARTS:
                line = (await process.stdout.readline()).decode()
                assert line, said
                said += line
                event = json.loads(line)
                if event["event"] == "up":
                    pids[event["role"]] = event["pid"]
        yield process, pids, said
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def has(client: Client, value: bytes) -> None:
    """Wait until the topic has a value: other processes copy it."""
    async with asyncio.timeout(HANGS_S):
        while (record := await client.get("certs", b"k")) is None or record.data != value:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_cluster_next_to_ones_own_nats_with_credentials_and_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    theirs, ca = authority.sign("server"), authority.own.certificate
    tls = f'tls {{ cert_file: "{theirs.certificate}", key_file: "{theirs.key}" }}\n'
    with running_nats(tmp_path / "nats", config=USERS + tls) as server:
        url = f"tls://ingest:{PASSWORD}@{server.address}"
        bucket = await bucket_of(url, authority)
        await bucket.put("k", b"1")
        data = tmp_path / "data"
        async with up(data, "--nats", url, "--nats-ca", str(ca)) as (process, pids, said):
            assert f"yours, at {server.address}" in said
            code, _, err = await run("source", "create", "certs", "--bucket", "certs", "--data", str(data))
            assert code == 0, err
            parts = json.loads((data / "cluster.json").read_text(encoding="utf-8"))
            async with connect(parts["store"]["address"]) as client:
                await has(client, b"1")
                os.kill(pids["ingest"], signal.SIGKILL)
                await bucket.put("k", b"2")
                await has(client, b"2")
            assert (data / "logs" / "ingest.log").exists()
            assert not (data / "nats").exists()
            everything = said + "".join(
                file.read_text(encoding="utf-8") for file in [data / "cluster.json", *(data / "logs").iterdir()]
            )
            assert PASSWORD not in everything
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(HANGS_S):
                assert await process.wait() == 0
        await bucket.put("k", b"3")  # theirs runs on


async def bucket_of(url: str, authority: Authority) -> KeyValue:
    """A bucket, as its owner has it."""
    client = await nats.connect(url, tls=ssl.create_default_context(cafile=str(authority.own.certificate)))
    return await client.jetstream().create_key_value(KeyValueConfig(bucket="certs", history=64))


async def test_a_wrong_password_ends_the_start_with_one_line(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats", config=USERS) as server:
        url = f"nats://ingest:wrong-word@{server.address}"
        code, out, err = await run("up", "--free-ports", "--data", str(tmp_path / "data"), "--nats", url)
    assert code == 1
    assert "refuses the credentials" in err
    assert "Traceback" not in err
    assert "wrong-word" not in out + err


async def test_no_server_ends_the_start_at_once(tmp_path: Path) -> None:
    code, out, err = await run("up", "--data", str(tmp_path / "data"), "--nats", "nats://127.0.0.1:1")
    assert code == 1
    assert "no NATS server answers: 127.0.0.1:1: " in err
    assert not out
    assert not (tmp_path / "data").exists()
