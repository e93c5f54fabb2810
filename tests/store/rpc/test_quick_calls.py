"""Appends and reads of keys that a store answers at once: as it answers them on the other wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.runtime.settings import WIRES
from eddyline.core.server.server import make_server
from eddyline.v1 import fold_pb2, log_pb2, topic_pb2, types_pb2
from tests.store.rpc.requests import keyed, keyless, rows
from tests.support.store.served import refused, served_store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    defaults = make_server.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "wire", request.param)
    return str(request.param)


async def test_keys_are_read_as_they_were_appended(tmp_path: Path, wire: str) -> None:
    async with served_store(tmp_path) as store:
        epoch = (await store.create("kv")).epoch
        for first in (0, 20):
            entries = [keyed(f"k{number}", f"v{number}") for number in range(first, first + 20)]
            answer = await store.log.AppendRecords(rows("kv", *entries))
            assert (answer.first_seq, answer.last_seq, answer.epoch) == (first + 1, first + 20, epoch)
        names = [b"k1", b"none", b"k30", b"k1"]
        for number in (1, 30):
            got = await store.fold.GetEntry(fold_pb2.GetEntryRequest(topic="kv", key=b"k%d" % number))
            assert (got.entry.data, got.entry.seq, got.state.fold_seq) == (b"v%d" % number, number + 1, 40)
        for count in (1, 4):
            for as_format in (types_pb2.BATCH_FORMAT_ROWS, types_pb2.BATCH_FORMAT_COLUMNS):
                batch = await store.fold.BatchGetEntries(
                    fold_pb2.BatchGetEntriesRequest(topic="kv", keys=names[:count], format=as_format)
                )
                live = [one.entry.data for one in batch.entries if one.HasField("entry")]
                if as_format == types_pb2.BATCH_FORMAT_ROWS:
                    assert live == [b"v1", b"v30", b"v1"][: max(1, count - 1)]
                else:
                    assert batch.columns.count == max(1, count - 1)


async def test_refusals_have_their_reasons_and_count_once(tmp_path: Path, wire: str) -> None:
    async with served_store(tmp_path, retained_bytes_max=400) as store:
        await store.create("kv")
        await store.create("log", topic_pb2.TOPIC_KIND_LOG)
        await store.log.AppendRecords(rows("log", keyless("x" * 300)))
        await refused(store.log.AppendRecords(rows("log", keyless("x" * 300))), "QUOTA_BYTES")
        assert store.link.measured().measures.refused["QUOTA_BYTES"] == 1
        await refused(store.log.AppendRecords(rows("absent", keyless("x"))), "TOPIC_NOT_FOUND")
        await refused(store.log.AppendRecords(rows("kv", keyless("x"))), "KEY_REQUIRED")
        for topic, key, reason in (
            ("absent", b"k", "TOPIC_NOT_FOUND"),
            ("log", b"k", "NOT_KV"),
            ("kv", b"k", "KEY_NOT_FOUND"),
            ("kv", b"", "INVALID_ARGUMENT"),
        ):
            await refused(store.fold.GetEntry(fold_pb2.GetEntryRequest(topic=topic, key=key)), reason)
        await refused(store.fold.BatchGetEntries(fold_pb2.BatchGetEntriesRequest(topic="kv")), "INVALID_ARGUMENT")
        store.handle.close()
        await refused(store.fold.GetEntry(fold_pb2.GetEntryRequest(topic="kv", key=b"k")), "NOT_READY")
        await refused(store.log.AppendRecords(rows("log", keyless("x"))), "NOT_READY")


async def test_appends_that_must_wait_are_taken_by_the_handler(tmp_path: Path, wire: str) -> None:
    async with served_store(tmp_path) as store:
        created = rows("kv", keyed("a", "1"))
        created.create.CopyFrom(log_pb2.CreateIfMissing(kind=topic_pb2.TOPIC_KIND_KV))
        assert (await store.log.AppendRecords(created)).last_seq == 1
        versioned = rows("kv", keyed("a", "2"))
        versioned.expected_versions.add(key=b"a", version=(1).to_bytes(8, "big"))
        assert (await store.log.AppendRecords(versioned)).last_seq == 2
        await refused(store.log.AppendRecords(versioned), "VERSION_MISMATCH")
        repeated = rows("kv", keyed("b", "1"))
        repeated.idempotency_key = "once"
        answers = [await store.log.AppendRecords(repeated) for _ in range(2)]
        assert [(one.last_seq, one.deduplicated) for one in answers] == [(3, False), (3, True)]
