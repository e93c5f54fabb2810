"""FoldService: points, batches, ranges, waits, and every refusal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from eddyline.core.codec.records import answer_from_columns
from eddyline.core.errors import FoldBehind
from eddyline.core.model.source import SourceDefinition, SourceReport
from eddyline.core.records import record
from eddyline.core.records.batch import Batch
from eddyline.core.transport.cluster_check import cluster_metadata
from eddyline.store.fold.fold import VIEWS_MAX
from eddyline.store.rpc.limits import CLIENT_SCANS_MAX
from eddyline.v1 import apply_pb2, topic_pb2
from eddyline.v1.fold_pb2 import BatchGetEntriesRequest, GetEntryRequest, RangeEntriesRequest
from eddyline.v1.types_pb2 import BATCH_FORMAT_COLUMNS, OP_DELETE, Record
from tests.store.rpc.requests import keyed, keyless, rows
from tests.support.store.served import CLUSTER_ID, Gate, answers_of, refused, served_store, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.support.store.served import ServedStore

LOG, KV = topic_pb2.TOPIC_KIND_LOG, topic_pb2.TOPIC_KIND_KV
MIB = 1 << 20


def version(seq: int) -> bytes:
    return seq.to_bytes(8, "big")


async def fill(store: ServedStore, topic: str, count: int) -> None:
    await store.log.AppendRecords(rows(topic, *[keyed(f"k{number:05}", str(number)) for number in range(count)]))


async def test_entry_is_the_last_write_of_its_key(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = await store.create("kv")
        await store.log.AppendRecords(rows("kv", keyed("a", "1"), keyed("b", ""), keyed("a", "2"), keyed("c", "3")))
        await store.log.AppendRecords(rows("kv", Record(key=b"c", op=OP_DELETE)))
        answer = await store.fold.GetEntry(GetEntryRequest(topic="kv", key=b"a"))
        assert (answer.entry.data, answer.entry.seq, answer.entry.version) == (b"2", 3, version(3))
        assert (answer.state.fold_seq, answer.state.epoch, answer.state.source_state) == (5, made.epoch, "")
        empty = (await store.fold.GetEntry(GetEntryRequest(topic="kv", key=b"b"))).entry
        assert (empty.HasField("data"), empty.data) == (True, b"")
        error = await refused(store.fold.GetEntry(GetEntryRequest(topic="kv", key=b"c")), "KEY_NOT_FOUND")
        assert error.metadata == {"topic": "kv", "key": b"c".hex(), "foldSeq": "5"}


async def test_keys_are_answered_in_the_order_of_the_request(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await store.log.AppendRecords(rows("kv", keyed("a", "1"), keyed("b", "2")))
        answer = await store.fold.BatchGetEntries(BatchGetEntriesRequest(topic="kv", keys=[b"b", b"", b"a", b"b"]))
        found = [entry.entry.data if entry.HasField("entry") else None for entry in answer.entries]
        assert found == [b"2", None, b"1", b"2"]
        assert answer.state.fold_seq == 2


async def test_keys_as_columns_are_the_live_ones_in_the_order_of_the_request(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = await store.create("kv")
        await store.log.AppendRecords(rows("kv", keyed("a", "1"), keyed("b", "22")))
        request = BatchGetEntriesRequest(topic="kv", keys=[b"b", b"none", b"a", b"b"], format=BATCH_FORMAT_COLUMNS)
        answer = await store.fold.BatchGetEntries(request)
        assert not answer.entries
        batch = answer_from_columns(answer.columns)
        assert batch.keys() == [b"b", b"a", b"b"]
        assert batch.seq_list() == [2, 1, 2]
        assert [row.data for row in batch.to_rows()] == [b"22", b"1", b"22"]
        assert (answer.state.fold_seq, answer.state.epoch) == (2, made.epoch)
        request.keys[:] = [b"none"]
        answer = await store.fold.BatchGetEntries(request)
        assert answer.HasField("columns")
        assert answer.columns.count == 0


async def test_any_number_of_keys_is_answered_as_one_by_one(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await fill(store, "kv", 300)
        await store.log.AppendRecords(
            rows("kv", Record(key=b"k00007", data=b"", tag="t", node="n"), keyed("z" * 999, ""))
        )
        keys = [f"k{number:05}".encode() for number in range(310)] + [b"z" * 999]
        for count in (1, 15, 17, 311):
            answer = await store.fold.BatchGetEntries(BatchGetEntriesRequest(topic="kv", keys=keys[-count:]))
            for key, maybe in zip(keys[-count:], answer.entries, strict=True):
                if not maybe.HasField("entry"):
                    await refused(store.fold.GetEntry(GetEntryRequest(topic="kv", key=key)), "KEY_NOT_FOUND")
                else:
                    assert (await store.fold.GetEntry(GetEntryRequest(topic="kv", key=key))).entry == maybe.entry


async def test_key_in_memory_is_answered_while_no_disk_read_gets_through(tmp_path: Path) -> None:
    gate = Gate()
    async with served_store(tmp_path / "store", fold=gate) as store:
        await store.create("kv")
        await store.log.AppendRecords(rows("kv", keyed("a", "1")))
        calls = gate.job_count
        assert (await store.fold.GetEntry(GetEntryRequest(topic="kv", key=b"a"))).entry.data == b"1"
        assert gate.job_count == calls
        await refused(store.fold.GetEntry(GetEntryRequest(topic="kv", key=b"b")), "KEY_NOT_FOUND")
        assert gate.job_count == calls + 1


async def test_range_is_in_byte_order_at_one_point_in_pieces(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await fill(store, "kv", 2_000)
        keys, states, pieces = [], set(), 0
        async for answer in store.fold.RangeEntries(RangeEntriesRequest(topic="kv", key_prefix=b"k")):
            if not pieces:
                await store.log.AppendRecords(rows("kv", keyed("k99999", "late")))
            pieces += 1
            keys += [record.key for record in answer.rows.records]
            states.add(answer.state.fold_seq)
        assert keys == [f"k{number:05}".encode() for number in range(2_000)]
        assert states == {2_000}
        assert pieces > 1


async def test_range_keeps_its_bounds(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await store.log.AppendRecords(rows("kv", *[keyed(key, key) for key in ("a", "b1", "b2", "b3", "c")]))

        async def found(**bounds: object) -> list[bytes]:
            request = RangeEntriesRequest(topic="kv", **bounds)  # type: ignore[arg-type]
            answers, reason = await answers_of(store.fold.RangeEntries(request))
            assert reason == ""
            assert len(answers) == 1
            assert answers[0].state.fold_seq == 5
            return [record.key for record in answers[0].rows.records]

        assert await found(key_prefix=b"b") == [b"b1", b"b2", b"b3"]
        assert await found(key_prefix=b"b", after_key=b"b1") == [b"b2", b"b3"]
        assert await found(after_key=b"b3") == [b"c"]
        assert await found(limit=2) == [b"a", b"b1"]
        assert await found(key_prefix=b"z") == []
        request = RangeEntriesRequest(topic="kv", format=BATCH_FORMAT_COLUMNS)
        answers, _ = await answers_of(store.fold.RangeEntries(request))
        assert answers[0].columns.key.values == b"ab1b2b3c"


@pytest.mark.parametrize(
    ("request_", "reason", "field"),
    [
        pytest.param(GetEntryRequest(topic="no such", key=b"a"), "INVALID_NAME", "topic", id="bad name"),
        pytest.param(GetEntryRequest(topic="nobody", key=b"a"), "TOPIC_NOT_FOUND", "", id="unknown topic"),
        pytest.param(GetEntryRequest(topic="log", key=b"a"), "NOT_KV", "", id="log"),
        pytest.param(GetEntryRequest(topic="log", key=b"a", min_seq=9), "NOT_KV", "", id="log with a wait"),
        pytest.param(GetEntryRequest(topic="kv"), "INVALID_ARGUMENT", "key", id="no key"),
        pytest.param(GetEntryRequest(topic="kv", key=bytes(1025)), "INVALID_ARGUMENT", "key", id="long key"),
        pytest.param(
            GetEntryRequest(topic="kv", key=b"a", min_version=bytes(11)),
            "INVALID_ARGUMENT",
            "min_version",
            id="version",
        ),
    ],
)
async def test_bad_get_is_refused(tmp_path: Path, request_: GetEntryRequest, reason: str, field: str) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await store.create("log", LOG)
        error = await refused(store.fold.GetEntry(request_), reason)
        assert error.metadata.get("field", "") == field


async def test_bad_batch_get_is_refused(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await store.create("log", LOG)
        get = store.fold.BatchGetEntries
        await refused(get(BatchGetEntriesRequest(topic="log", keys=[b"a"])), "NOT_KV")
        await refused(get(BatchGetEntriesRequest(topic="nobody", keys=[b"a"])), "TOPIC_NOT_FOUND")
        await refused(get(BatchGetEntriesRequest(topic="no such", keys=[b"a"])), "INVALID_NAME")
        unknown = BatchGetEntriesRequest(topic="kv", keys=[b"a"], format=7)  # type: ignore[arg-type]
        assert (await refused(get(unknown), "INVALID_ARGUMENT")).metadata["field"] == "format"
        for keys in ([], [b"k"] * 10_001, [b"a", bytes(1025)]):
            error = await refused(get(BatchGetEntriesRequest(topic="kv", keys=keys)), "INVALID_ARGUMENT")
            assert error.metadata["field"] == "keys"


async def test_bad_range_is_refused(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await store.create("log", LOG)
        for request, reason in (
            (RangeEntriesRequest(topic="log"), "NOT_KV"),
            (RangeEntriesRequest(topic="nobody"), "TOPIC_NOT_FOUND"),
            (RangeEntriesRequest(topic="no such"), "INVALID_NAME"),
            (RangeEntriesRequest(topic="kv", key_prefix=bytes(1025)), "INVALID_ARGUMENT"),
            (RangeEntriesRequest(topic="kv", format=7), "INVALID_ARGUMENT"),  # type: ignore[arg-type]
        ):
            assert await answers_of(store.fold.RangeEntries(request)) == ([], reason)


async def test_answer_too_large_for_a_message_asks_for_fewer_keys(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await store.log.AppendRecords(rows("kv", Record(key=b"a", data=bytes(MIB))))
        many = BatchGetEntriesRequest(topic="kv", keys=[b"a"] * 64)
        error = await refused(store.fold.BatchGetEntries(many), "INVALID_ARGUMENT")
        assert error.metadata["field"] == "keys"
        fewer = await store.fold.BatchGetEntries(BatchGetEntriesRequest(topic="kv", keys=[b"a"] * 60))
        assert len(fewer.entries) == 60


async def test_get_waits_for_a_seq_and_for_a_version(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store, asyncio.TaskGroup() as tasks:
        await store.create("kv")
        await store.log.AppendRecords(rows("kv", keyed("a", "1")))

        async def get(request: GetEntryRequest) -> bytes:
            return (await store.fold.GetEntry(request)).entry.data

        for request in (
            GetEntryRequest(topic="kv", key=b"a", min_seq=3),
            GetEntryRequest(topic="kv", key=b"a", min_version=version(5)),
        ):
            timers = store.clock.pending
            getting = tasks.create_task(get(request))
            await until(lambda timers=timers: store.clock.pending > timers)  # type: ignore[misc]
            await store.log.AppendRecords(rows("kv", keyed("other", "1")))
            await store.log.AppendRecords(rows("kv", keyed("a", "new")))
            assert await getting == b"new"
        assert await get(GetEntryRequest(topic="kv", key=b"a", min_seq=5, min_version=version(5))) == b"new"


async def test_wait_beyond_its_limit_ends_with_the_folds_seq(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store, asyncio.TaskGroup() as tasks:
        await store.create("kv")
        await store.log.AppendRecords(rows("kv", keyed("a", "1")))
        calls: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: store.fold.GetEntry(GetEntryRequest(topic="kv", key=b"a", min_seq=2)),
            lambda: store.fold.GetEntry(GetEntryRequest(topic="kv", key=b"a", min_version=version(2))),
            lambda: store.fold.BatchGetEntries(BatchGetEntriesRequest(topic="kv", keys=[b"a"], min_seq=2)),
        )
        for call in calls:
            timers = store.clock.pending
            waiting = tasks.create_task(refused(call(), "FOLD_BEHIND"))
            await until(lambda timers=timers: store.clock.pending > timers)  # type: ignore[misc]
            await store.clock.pass_time(30)
            error = await waiting
            assert isinstance(error, FoldBehind)
            assert error.metadata["foldSeq"] == "1"
        request = RangeEntriesRequest(topic="kv", min_seq=2)
        ranging = tasks.create_task(answers_of(store.fold.RangeEntries(request)))
        timers = store.clock.pending
        await until(lambda: store.clock.pending > timers)
        await store.clock.pass_time(30)
        assert await ranging == ([], "FOLD_BEHIND")


@pytest.mark.parametrize("state", ["CURSOR_AHEAD", "STREAM_RECREATED"])
async def test_version_of_the_stream_of_before_does_not_answer_for_one_of_the_stream_that_is_there(
    tmp_path: Path, state: str
) -> None:
    async with served_store(tmp_path / "store") as store, asyncio.TaskGroup() as tasks:
        await store.create("kv")
        await store.link.put_source(SourceDefinition("s", "kv", "bucket"))
        fence = (await store.link.acquire_lease("s", holder="h", lease_ms=60_000)).fence
        batch = Batch.from_rows([record.Record(op=record.Op.PUT, key=b"a", data=b"old", version=version(480))])
        await store.link.apply_batch("s", fence=fence, previous=b"", new=b"500", batch=batch)
        request = GetEntryRequest(topic="kv", key=b"a", min_version=version(471))
        assert (await store.fold.GetEntry(request)).entry.data == b"old"
        await store.link.renew_lease("s", fence=fence, report=SourceReport(state, "another stream"))
        assert (await store.fold.GetEntry(GetEntryRequest(topic="kv", key=b"a"))).state.source_state == state
        if state == "CURSOR_AHEAD":  # which is told whoever holds it next
            await store.link.acquire_lease("s", holder="h", lease_ms=60_000)
        timers = store.clock.pending
        waiting = tasks.create_task(refused(store.fold.GetEntry(request), "FOLD_BEHIND"))
        await until(lambda: store.clock.pending > timers)
        await store.clock.pass_time(30)
        await waiting


async def test_wait_is_cut_to_the_callers_deadline(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store, asyncio.TaskGroup() as tasks:
        await store.create("kv")
        timers = store.clock.pending
        call = store.fold.GetEntry(GetEntryRequest(topic="kv", key=b"a", min_seq=1), timeout=10)
        waiting = tasks.create_task(refused(call, "FOLD_BEHIND"))
        await until(lambda: store.clock.pending > timers)
        await store.clock.pass_time(10)
        await waiting


async def test_broken_off_ranges_let_go_of_their_views(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        for _ in range(4):
            await store.log.AppendRecords(
                rows("kv", *[Record(key=f"k{number}".encode(), data=bytes(64 << 10)) for number in range(500)])
            )
        # More than may be open at once: a view that stayed behind would fail a later one.
        for _ in range(100):
            call = store.fold.RangeEntries(RangeEntriesRequest(topic="kv"))
            await anext(aiter(call))
            call.cancel()
        for _ in range(1_000):
            answers, reason = await answers_of(store.fold.RangeEntries(RangeEntriesRequest(topic="kv")))
            if reason != "TOO_MANY_SCANS":
                break
        assert reason == ""
        assert sum(len(answer.rows.records) for answer in answers) == 500


async def test_too_many_ranges_at_once_are_refused(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await store.log.AppendRecords(
            rows("kv", *[Record(key=f"k{number}".encode(), data=bytes(64 << 10)) for number in range(500)])
        )
        request, role = RangeEntriesRequest(topic="kv"), cluster_metadata(CLUSTER_ID)
        calls = [store.fold.RangeEntries(request) for _ in range(CLIENT_SCANS_MAX)]
        for call in calls:
            await anext(aiter(call))
        assert await answers_of(store.fold.RangeEntries(request)) == ([], "TOO_MANY_SCANS")
        # the rest is for roles
        calls += [store.fold.RangeEntries(request, metadata=role) for _ in range(VIEWS_MAX - CLIENT_SCANS_MAX)]
        for call in calls[CLIENT_SCANS_MAX:]:
            await anext(aiter(call))
        assert await answers_of(store.fold.RangeEntries(request, metadata=role)) == ([], "TOO_MANY_SCANS")
        for call in calls:
            call.cancel()


async def test_state_tells_how_the_source_does(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        definition = apply_pb2.SourceDefinition(name="s", topic="kv", bucket="b")
        await store.apply.PutSource(apply_pb2.PutSourceRequest(definition=definition))
        lease = await store.apply.AcquireLease(apply_pb2.AcquireLeaseRequest(source="s", holder="h", lease_ms=60_000))
        await store.apply.RenewLease(apply_pb2.RenewLeaseRequest(source="s", fence=lease.fence, state="LIVE"))
        store.clock.advance(1.5)
        state = (await store.fold.BatchGetEntries(BatchGetEntriesRequest(topic="kv", keys=[b"a"]))).state
        assert (state.source_state, state.staleness_ms) == ("LIVE", 1_500)


async def test_keyless_topics_have_no_fold(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        await store.log.AppendRecords(rows("log", keyless("1")))
        await refused(store.fold.GetEntry(GetEntryRequest(topic="log", key=b"a")), "NOT_KV")
