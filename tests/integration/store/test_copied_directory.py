"""A data directory that is copied while a store writes to it: the copy opens right or is refused, and the check says which.

No copy tool gives one moment of many files: some were copied before others, some went away meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import grpc
import pytest

from eddyline.v1 import fold_pb2, fold_pb2_grpc, log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.support.cluster.processes import free_address, process, serving
from tests.support.hang import HANG_S

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.integration

COPIES = 3
KEYS = 2_000
ROWS = 400
ROUNDS = 25
OPTIONS = [("grpc.max_receive_message_length", 64 << 20)]
ORDERS: Sequence[Sequence[str]] = (
    ("identity", "catalog", "fold", "topics", "wal"),
    ("wal", "topics", "fold", "catalog", "identity"),
    ("wal", "catalog", "topics", "identity", "fold"),
)
"""Orders in which a tool may come to the parts of a directory."""


def settings(address: str, data_dir: Path) -> dict[str, str]:
    """Small files and many checkpoints, so that every copy meets some of them."""
    chosen = {
        "LISTEN": address,
        "DATA_DIR": str(data_dir),
        "WAL_FILE_BYTES": str(256 << 10),
        "CHECKPOINT_BYTES": str(1 << 20),
        "SEAL_RECORDS": "4000",
    }
    return {f"EDDYLINE_STORE_{name}": value for name, value in chosen.items()}


class Written(NamedTuple):
    """The store's content when a copy begins."""

    log_seq: int
    kv_seq: int


class Writer:
    """Appends to a LOG and a KV topic as fast as it is answered; a record is known by its number, which is its seq."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self.log_seq = self.kv_seq = 0
        self._round = asyncio.Event()

    async def start(self) -> None:
        topics = topic_pb2_grpc.TopicServiceStub(self._channel)
        for name, kind in (("log", topic_pb2.TOPIC_KIND_LOG), ("kv", topic_pb2.TOPIC_KIND_KV)):
            await topics.CreateTopic(topic_pb2.CreateTopicRequest(topic=topic_pb2.Topic(name=name, kind=kind)))

    async def run(self) -> None:
        log = log_pb2_grpc.LogServiceStub(self._channel)
        while True:
            lines = [types_pb2.Record(data=data_of(self.log_seq + 1 + i)) for i in range(ROWS)]
            puts = [
                types_pb2.Record(op=types_pb2.OP_PUT, key=key_of(seq), data=data_of(seq))
                for seq in range(self.kv_seq + 1, self.kv_seq + 1 + ROWS)
            ]
            for topic, records in (("log", lines), ("kv", puts)):
                rows = types_pb2.RecordBatch(records=records)
                answer = await log.AppendRecords(log_pb2.AppendRecordsRequest(topic=topic, rows=rows))
                if topic == "log":
                    self.log_seq = answer.last_seq
                else:
                    self.kv_seq = answer.last_seq
            self._round.set()

    async def further(self) -> None:
        """Wait until `ROUNDS` more rounds are written."""
        for _ in range(ROUNDS):
            self._round.clear()
            await self._round.wait()


def data_of(seq: int) -> bytes:
    return b"%d " % seq * 12


def key_of(seq: int) -> bytes:
    return b"%04d" % (seq * 7 % KEYS)


def copy(source: Path, target: Path, order: Sequence[str]) -> None:
    """Copy part by part, file by file; what is gone when its turn comes is left out."""
    target.mkdir()
    for part in order:
        found = sorted((source / part).rglob("*")) if (source / part).is_dir() else [source / part]
        for path in found:
            to = target / path.relative_to(source)
            with suppress(FileNotFoundError):
                if path.is_dir():
                    to.mkdir(parents=True, exist_ok=True)
                else:
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, to)


async def test_copy_made_under_writes_opens_right_or_is_refused_and_the_check_states_which(tmp_path: Path) -> None:
    copies = list[tuple[Path, Written]]()
    address = free_address()
    async with (
        process("eddyline.store", **settings(address, tmp_path / "store")),
        grpc.aio.insecure_channel(address, options=OPTIONS) as channel,
    ):
        await serving(address)
        writer = Writer(channel)
        await writer.start()
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(writer.run())
            for number in range(COPIES):
                async with asyncio.timeout(HANG_S):
                    await writer.further()
                known = Written(writer.log_seq, writer.kv_seq)
                copies.append((tmp_path / f"copy-{number}", known))
                await asyncio.to_thread(
                    copy, tmp_path / "store", tmp_path / f"copy-{number}", ORDERS[number % len(ORDERS)]
                )
            writing.cancel()
    for path, written in copies:
        await check(path, written)


async def check(path: Path, written: Written) -> None:
    """Check a copy, start it, and verify its answers; the check must have reported a copy that the start refuses."""
    checked = await run("fsck", str(path))
    assert checked.code in (0, 1, 2)
    assert checked.said, "the check says something"
    address = free_address()
    starting = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "eddyline.store",
        env={**os.environ, **settings(address, path), "EDDYLINE_COMMON_LOG_LEVEL": "ERROR"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert starting.stdout is not None
    assert starting.stderr is not None
    try:
        async with asyncio.timeout(HANG_S):
            line = (await starting.stdout.readline()).decode()
        if not line:
            said = (await starting.stderr.read()).decode().splitlines()
            assert await starting.wait() == 1, said
            assert said[-1].startswith("eddyline store: "), said
            assert "Traceback" not in "".join(said)
            assert checked.code, f"the check found nothing, the start says: {said}"
            return
        told_lost = await serves(address, written)
    finally:
        if starting.returncode is None:
            starting.terminate()
        await starting.wait()
    # A fold that knows more than its log differs from it; without such entries all is as it should be.
    again = await run("fsck", str(path))
    assert again.code == 0 or told_lost, again.said


class Said(NamedTuple):
    code: int
    said: str


async def run(*words: str) -> Said:
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "eddyline.store", *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.stdout is not None
    said = (await done.stdout.read()).decode()
    return Said(await done.wait(), said)


async def serves(address: str, written: Written) -> bool:
    """All that was acknowledged before the copy began is there, and nothing else than was written; fold and log agree.
    True = the KV topic has gaps.

    A fold that was copied after the log may know more: entries whose records the log tells as lost.
    """
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        log = await records_of(channel, "log")
        assert log.records == {seq: (b"", data_of(seq)) for seq in range(1, len(log.records) + 1)}
        assert len(log.records) >= written.log_seq
        kv = await records_of(channel, "kv")
        assert kv.records == {seq: (key_of(seq), data_of(seq)) for seq in range(1, len(kv.records) + 1)}
        assert len(kv.records) >= written.kv_seq
        live = {key: seq for seq, (key, _) in kv.records.items()}
        fold = fold_pb2_grpc.FoldServiceStub(channel)
        entries = dict[bytes, int]()
        async for answer in fold.RangeEntries(fold_pb2.RangeEntriesRequest(topic="kv")):
            for record in answer.rows.records:
                assert (record.key, record.data) == (key_of(record.seq), data_of(record.seq))
                entries[record.key] = record.seq
        assert entries.keys() == live.keys()
        assert all(seq == live[key] or (seq > live[key] and seq in kv.lost) for key, seq in entries.items())
        return bool(kv.lost)


class Found(NamedTuple):
    """Key and data of records by seq, and the seqs within gaps."""

    records: dict[int, tuple[bytes, bytes]]
    lost: set[int]


async def records_of(channel: grpc.aio.Channel, topic: str) -> Found:
    """All that a topic's log tells."""
    log = log_pb2_grpc.LogServiceStub(channel)
    found, after_seq = Found({}, set()), 0
    while True:
        answer = await log.ReadRecords(log_pb2.ReadRecordsRequest(topic=topic, after_seq=after_seq, limit=10_000))
        for item in answer.items:
            found.records.update({record.seq: (record.key, record.data) for record in item.rows.records})
            if item.HasField("gap"):
                assert item.gap.reason == types_pb2.GAP_REASON_UNSYNCED
                found.lost.update(range(item.gap.first_seq, item.gap.last_seq + 1))
        if answer.caught_up:
            return found
        after_seq = answer.next_after_seq
