"""`python -m eddyline.store` as a process: its one line, its exit codes, and how it says that it cannot start."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.core.runtime.fs import RealFs
from eddyline.core.transport.channel import open_channel
from eddyline.store.__main__ import main
from eddyline.store.storage.layout import Layout
from eddyline.v1 import apply_pb2, apply_pb2_grpc, log_pb2, log_pb2_grpc, topic_pb2, types_pb2
from eddyline.v1.types_pb2 import Record, RecordBatch
from tests.support.access import Keys
from tests.support.store.served import is_serving, served_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.integration


def environment(data_dir: Path, **changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EDDYLINE_")}
    store = {"EDDYLINE_STORE_LISTEN": "127.0.0.1:0", "EDDYLINE_STORE_DATA_DIR": str(data_dir)}
    return {
        **kept,
        **store,
        "EDDYLINE_STORE_WAL_FILE_BYTES": "262144",
        "EDDYLINE_COMMON_LOG_LEVEL": "WARNING",
        **changes,
    }


@contextmanager
def running(data_dir: Path, **changes: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A store, and its address once it is ready."""
    store = subprocess.Popen(
        [sys.executable, "-m", "eddyline.store"],
        env=environment(data_dir, **changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with store:
        try:
            assert store.stdout is not None
            line = store.stdout.readline()
            assert line.startswith("store ready at 127.0.0.1:"), line
            yield store, line.split()[3].rstrip(",")
        finally:
            store.kill()


def refused_start(data_dir: Path, under: tuple[str, ...] = (), /, **changes: str) -> str:
    """Start a store that cannot, by another program where one is given; what it says, in one line."""
    done = subprocess.run(
        [*under, sys.executable, "-m", "eddyline.store"],
        env=environment(data_dir, **changes),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (1, "")
    # gRPC's own library writes a line, beginning with its level and the day, when a port is taken.
    lines = [line for line in done.stderr.splitlines() if not re.match(r"[EIW]\d{4} ", line)]
    assert len(lines) == 1, done.stderr
    return lines[0]


def refused_settings(data_dir: Path, **changes: str) -> str:
    """The same for what is refused before anything is started, in this process."""
    said = StringIO()
    with redirect_stderr(said):
        assert main(environment(data_dir, **changes)) == 1
    (line,) = said.getvalue().splitlines()
    return line


def append(topic: str, data: bytes) -> log_pb2.AppendRecordsRequest:
    create = log_pb2.CreateIfMissing(kind=topic_pb2.TOPIC_KIND_LOG)
    return log_pb2.AppendRecordsRequest(topic=topic, rows=RecordBatch(records=[Record(data=data)]), create=create)


async def test_terminated_store_ends_its_streams_stops_clean_and_keeps_all(tmp_path: Path) -> None:
    data_dir = tmp_path / "new" / "store"
    with running(data_dir) as (store, address):
        async with open_channel(address, own_connection=True) as channel:
            assert await is_serving(channel, "")
            await log_pb2_grpc.LogServiceStub(channel).AppendRecords(append("a", b"1"))
            follow = apply_pb2_grpc.ApplyServiceStub(channel).FollowTopics()
            step = apply_pb2.FollowAdd(follow_id=1, topic="a")
            await follow.write(apply_pb2.FollowTopicsRequest(add=step))
            answers = aiter(follow)
            assert [(await anext(answers)).WhichOneof("event") for _ in range(2)] == ["started", "level"]
            store.send_signal(signal.SIGTERM)
            code = await follow.code()
            assert code is grpc.StatusCode.UNAVAILABLE
        assert store.wait(10) == 0
        assert store.stderr is not None
        assert store.stderr.read() == ""
    assert json.loads(Layout(data_dir).identity.read_text().splitlines()[0])["clean"] is True
    with running(data_dir) as (store, address):
        async with open_channel(address, own_connection=True) as channel:
            answer = await log_pb2_grpc.LogServiceStub(channel).AppendRecords(append("a", b"2"))
            assert answer.first_seq == 2
        store.send_signal(signal.SIGINT)
        assert store.wait(10) == 0


async def test_killed_store_gives_no_acknowledged_seq_again_whose_frame_was_damaged(tmp_path: Path) -> None:
    data_dir = tmp_path / "store"
    kept = {"TMPDIR": str(tmp_path)}
    for damaged in (False, True):
        with running(data_dir, **kept) as (store, address):
            async with open_channel(address, own_connection=True) as channel:
                log = log_pb2_grpc.LogServiceStub(channel)
                answers = [await log.AppendRecords(append("a", b"%d" % number)) for number in range(3)]
            store.kill()
            store.wait(10)
        if damaged:
            newest = max((data_dir / "wal" / "00").glob("*.wal"))
            content = bytearray(newest.read_bytes())
            content[content.rindex(b"EDYF") + 50] ^= 4
            newest.write_bytes(content)
        else:
            assert answers[-1].last_seq == 3
    with running(data_dir, **kept) as (_, address):
        async with open_channel(address, own_connection=True) as channel:
            log = log_pb2_grpc.LogServiceStub(channel)
            assert answers[-1].last_seq == 6, "a kill alone skips nothing"
            found = await log.ReadRecords(log_pb2.ReadRecordsRequest(topic="a"))
            assert (await log.AppendRecords(append("a", b"next"))).first_seq > 6
    (gap,) = (item.gap for item in found.items if item.HasField("gap"))
    assert (gap.first_seq, gap.reason) == (6, types_pb2.GAP_REASON_UNSYNCED)


def test_second_store_on_a_directory_names_the_holder(tmp_path: Path) -> None:
    with running(tmp_path / "store") as (store, address):
        said = refused_start(tmp_path / "store")
        assert f"held by pid {store.pid} on " in said
        assert said == refused_start(tmp_path / "store", EDDYLINE_STORE_LISTEN=address)


def test_taken_port_is_named(tmp_path: Path) -> None:
    with running(tmp_path / "one") as (_, address):
        assert address in refused_start(tmp_path / "two", EDDYLINE_STORE_LISTEN=address)


@pytest.fixture
async def filled(tmp_path: Path) -> Path:
    """A stopped store's directory; the first of its records is known to be synced by what follows it."""
    data_dir = tmp_path / "store"
    async with served_store(data_dir) as store:
        for topic, data in (("a", b"easily found"), ("b", b"a new topic is synced"), ("a", b"and known to be")):
            await store.log.AppendRecords(append(topic, data))
    return data_dir


def test_directory_of_another_cluster_or_with_damage_is_refused(filled: Path) -> None:
    data_dir = filled
    said = refused_start(data_dir, EDDYLINE_COMMON_CLUSTER_ID="other")
    assert "'test'" in said
    assert "'other'" in said
    (damaged,) = [path for path in Layout(data_dir).wal_shard(0).glob("*.wal") if b"easily found" in path.read_bytes()]
    damaged.write_bytes(damaged.read_bytes().replace(b"easily found", b"easily f0und"))
    said = refused_start(data_dir, EDDYLINE_COMMON_CLUSTER_ID="test")
    assert "DATA_CORRUPT" in said
    assert str(damaged) in said
    identity = Layout(data_dir).identity
    identity.write_text(identity.read_text().replace('"test"', '"tess"'))
    assert str(identity) in refused_start(data_dir)


def test_settings_that_cannot_be_are_refused(tmp_path: Path) -> None:
    assert "EDDYLINE_STORE_NAME" in refused_settings(tmp_path / "store", EDDYLINE_STORE_NAME="x")
    assert "loopback" in refused_settings(tmp_path / "store", EDDYLINE_STORE_LISTEN="0.0.0.0:0")
    two = "127.0.0.1:1,127.0.0.1:2"
    for index, words in (
        ("2", "shards 0 to 1"),
        ("store-2", "shards 0 to 1"),
        ("-1", "not a whole number"),
        ("", "not a"),
    ):
        asked = {"EDDYLINE_COMMON_STORE_ADDRESSES": two, "EDDYLINE_STORE_SHARD_INDEX": index}
        assert words in refused_settings(tmp_path / "store", **asked)
    keys = {"EDDYLINE_COMMON_STORE_ADDRESSES": two, "EDDYLINE_COMMON_KEYS_FILE": str(Keys(tmp_path).path)}
    assert "EDDYLINE_COMMON_KEY_FILE is not set: with" in refused_settings(tmp_path / "store", **keys)
    assert not RealFs().exists(tmp_path / "store")


def test_directory_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in refused_start(tmp_path / "file")
