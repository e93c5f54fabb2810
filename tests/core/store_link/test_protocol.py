"""One suite for all implementations of `StoreLink`: the Protocol's contract holds in process, over gRPC and over shards.

Topics, batches, sources and leases; reads are in `test_store_link_reads`.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import (
    ApplyLag,
    CommitUnknown,
    InvalidArgument,
    InvalidName,
    InvalidOp,
    KeyRequired,
    LeaseHeld,
    NotReady,
    QuotaTopics,
    ReadOnly,
    SourceExists,
    SourceNotFound,
    StaleFence,
    StalePosition,
    TopicExists,
    TopicHasSource,
    TopicNotEmpty,
    TopicNotFound,
)
from eddyline.core.model.source import Renewal, SourceDefinition, SourceDetail, SourceInfo, SourceReport
from eddyline.core.model.topic import Durability, Kind, TopicConfig, TopicInfo
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import MetaEntry, Op, Record
from eddyline.core.store_link.protocol import AppendResult
from eddyline.store.write import admission as write_gate
from tests.support.manual_clock import START_MS
from tests.support.store.both_links import LinkedStore
from tests.support.store.simulated import append, puts, rows

if TYPE_CHECKING:
    from eddyline.core.model.read import ReadResult

FSYNC = TopicConfig(Durability.FSYNC, 9_000)
CERTS = SourceDefinition("certs", "kv", "bucket")


async def with_source(store: LinkedStore) -> int:
    """Create a KV topic with a leased source; return the lease's fence."""
    await store.link.create_topic("kv", Kind.KV, TopicConfig())
    await store.link.put_source(CERTS)
    return (await store.link.acquire_lease("certs", holder="a", lease_ms=0)).fence


def rows_of(result: ReadResult) -> list[object]:
    """Return a read's items as rows."""
    return [item.to_rows() if isinstance(item, Batch) else item for item in result.items]


# topics ----------------------------------------------------------------------------------------------------------


async def test_topic_is_created_and_read_with_all_it_has(store: LinkedStore) -> None:
    made = await store.link.create_topic("t", Kind.LOG, FSYNC)
    assert made == TopicInfo("t", 1, Kind.LOG, FSYNC, head_seq=0, earliest_seq=1, source="", create_ts_ms=START_MS)
    await append(store.door, "t", rows("a", "b"))
    assert await store.link.get_topic("t") == replace(made, head_seq=2, record_count=2, record_bytes=66)


async def test_topic_refusals(store: LinkedStore) -> None:
    with pytest.raises(InvalidName) as invalid:
        await store.link.create_topic("/", Kind.LOG, TopicConfig())
    assert invalid.value.metadata == {"field": "topic", "name": "/"}
    with pytest.raises(InvalidName):
        await store.link.get_topic("/")
    with pytest.raises(TopicNotFound) as missing:
        await store.link.get_topic("t")
    assert missing.value.metadata == {"topic": "t"}
    for number in range(4):
        await store.link.create_topic(f"t{number}", Kind.LOG, TopicConfig())
    with pytest.raises(TopicExists):
        await store.link.create_topic("t0", Kind.LOG, TopicConfig())
    with pytest.raises(QuotaTopics):
        await store.link.create_topic("t4", Kind.LOG, TopicConfig())


# apply_batch -----------------------------------------------------------------------------------------------------


async def test_batch_is_applied_with_its_position_and_time(store: LinkedStore) -> None:
    fence = await with_source(store)
    store.clock.advance(1.5)
    batch = Batch.from_rows(
        [
            Record(op=Op.PUT, key=b"k", data=b"", tag="t", node="n", meta=(MetaEntry("m", b"1"),), version=b"\7"),
            Record(op=Op.DELETE, key=b"k", source_ts_ns=-5),
        ]
    )
    done = await store.link.apply_batch("certs", fence=fence, previous=b"", new=b"1", batch=batch)
    assert done == AppendResult(1, 2, 1, START_MS + 1_500)
    read = await store.link.read_records("kv", after_seq=0)
    expected = [row._replace(seq=seq, ts_ms=done.ts_ms) for seq, row in enumerate(batch.to_rows(), 1)]
    assert rows_of(read) == [expected]
    assert (await store.link.get_source("certs")).position == b"1"


async def test_retried_batch_is_answered_and_not_repeated(store: LinkedStore) -> None:
    fence = await with_source(store)
    for deduplicated in (False, True):
        done = await store.link.apply_batch("certs", fence=fence, previous=b"", new=b"1", batch=puts(("k", "v")))
        assert done.deduplicated == deduplicated
    assert done == AppendResult(0, 0, 1, START_MS, deduplicated=True)
    assert (await store.link.get_topic("kv")).head_seq == 1


@pytest.mark.parametrize("batch", [None, Batch.from_rows([])], ids=["none", "empty"])
async def test_position_moves_alone(store: LinkedStore, batch: Batch | None) -> None:
    fence = await with_source(store)
    done = await store.link.apply_batch("certs", fence=fence, previous=b"", new=b"1", batch=batch)
    assert done == AppendResult(0, 0, 1, START_MS)
    info = await store.link.get_source("certs")
    assert (info.position, info.head_seq) == (b"1", 0)


async def test_batch_refusals(store: LinkedStore) -> None:
    fence = await with_source(store)

    async def refused(error: type[Exception], **changes: object) -> object:
        arguments = {
            "source": "certs",
            "fence": fence,
            "previous": b"",
            "new": b"1",
            "batch": puts(("k", "v")),
        } | changes
        source = str(arguments.pop("source"))
        with pytest.raises(error) as raised:
            await store.link.apply_batch(source, **arguments)  # type: ignore[arg-type]
        return raised.value

    await refused(InvalidName, source="/")
    await refused(SourceNotFound, source="other")
    await refused(InvalidArgument, fence=0)
    await refused(InvalidArgument, new=b"")
    await refused(InvalidArgument, new=b"x" * 257)
    await refused(KeyRequired, batch=Batch.from_rows([Record(op=Op.PUT, data=b"v")]))
    await refused(InvalidOp, batch=Batch.from_rows([Record(op=Op.PUT, key=b"k"), Record(key=b"k")]))
    stale = await refused(StaleFence, fence=fence + 1)
    assert isinstance(stale, StaleFence)
    assert stale.fence == fence
    other = await refused(StalePosition, previous=b"0")
    assert isinstance(other, StalePosition)
    assert other.position == b""
    newer = (await store.link.acquire_lease("certs", holder="a", lease_ms=0)).fence
    assert newer > fence
    await refused(StaleFence)
    assert (await store.link.get_topic("kv")).head_seq == 0


async def test_never_leased_source_accepts_no_batch(store: LinkedStore) -> None:
    await store.link.create_topic("kv", Kind.KV, TopicConfig())
    await store.link.put_source(CERTS)
    for fence, error in ((0, InvalidArgument), (1, StaleFence)):
        with pytest.raises(error):
            await store.link.apply_batch("certs", fence=fence, previous=b"", new=b"1", batch=puts(("k", "v")))


async def test_full_queue_and_a_failing_disk_are_errors(store: LinkedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fence = await with_source(store)

    async def apply() -> AppendResult:
        return await store.link.apply_batch("certs", fence=fence, previous=b"", new=b"1", batch=puts(("k", "v")))

    with monkeypatch.context() as patched:
        patched.setattr(write_gate, "APPLY_LAG_RECORDS_MAX", 0)
        with pytest.raises(ApplyLag) as lagging:
            await apply()
        assert lagging.value.metadata == {"retryAfterMs": "100"}
    store.disk.next_fault("pwritev", error=errno.EIO, lasting=True)
    with pytest.raises(CommitUnknown):
        await apply()
    with pytest.raises(ReadOnly):
        await store.link.create_topic("t", Kind.LOG, TopicConfig())
    with pytest.raises(ReadOnly):
        await store.link.acquire_lease("certs", holder="a", lease_ms=0)
    assert (await store.link.get_topic("kv")).head_seq == 0


async def test_stopping_store_is_not_ready(store: LinkedStore) -> None:
    fence = await with_source(store)
    store.door.stop_writes()
    for call in (
        store.link.create_topic("t", Kind.LOG, TopicConfig()),
        store.link.put_source(CERTS),
        store.link.delete_source("certs"),
        store.link.acquire_lease("certs", holder="a", lease_ms=0),
        store.link.apply_batch("certs", fence=fence, previous=b"", new=b"1", batch=None),
    ):
        with pytest.raises(NotReady):
            await call


# sources and leases ----------------------------------------------------------------------------------------------


async def test_source_is_put_read_listed_and_deleted(store: LinkedStore) -> None:
    epoch = (await store.link.create_topic("kv", Kind.KV, TopicConfig())).epoch
    first_epoch = (await store.link.create_topic("b", Kind.KV, TopicConfig())).epoch
    info = SourceInfo(CERTS, b"", 0, "", 0, SourceReport(), -1, 0, epoch=epoch)
    assert await store.link.put_source(CERTS) == (info, True)
    assert await store.link.put_source(CERTS) == (info, False)
    first = SourceDefinition("a", "b", "bucket")
    await store.link.put_source(first)
    assert list(await store.link.list_sources()) == [replace(info, definition=first, epoch=first_epoch), info]
    assert await store.link.get_source("certs") == info
    assert (await store.link.get_topic("kv")).source == "certs"
    await store.link.delete_source("certs")
    assert (await store.link.get_topic("kv")).source == ""
    with pytest.raises(SourceNotFound):
        await store.link.get_source("certs")


async def test_source_refusals(store: LinkedStore) -> None:
    with pytest.raises(TopicNotFound):
        await store.link.put_source(CERTS)
    for name in ("kv", "full"):
        await store.link.create_topic(name, Kind.KV, TopicConfig())
    await append(store.door, "full", puts(("k", "v")))
    with pytest.raises(TopicNotEmpty):
        await store.link.put_source(replace(CERTS, topic="full"))
    await store.link.put_source(CERTS)
    with pytest.raises(SourceExists) as exists:
        await store.link.put_source(replace(CERTS, bucket="other"))
    assert exists.value.metadata == {
        "source": "certs",
        "bucket": "bucket",
        "topic": "kv",
        "askedBucket": "other",
        "askedTopic": "kv",
        "fields": "bucket",
        "isSettled": "true",
    }
    with pytest.raises(TopicHasSource):
        await store.link.put_source(replace(CERTS, name="second"))
    with pytest.raises(InvalidArgument):
        await store.link.put_source(replace(CERTS, name="third", bucket=""))
    with pytest.raises(InvalidName):
        await store.link.put_source(replace(CERTS, name="/"))
    for call in (
        store.link.get_source("none"),
        store.link.delete_source("none"),
        store.link.acquire_lease("none", holder="a", lease_ms=0),
        store.link.renew_lease("none", fence=1, report=SourceReport()),
        store.link.release_lease("none", fence=1),
    ):
        with pytest.raises(SourceNotFound):
            await call


async def test_lease_is_taken_renewed_and_given_back(store: LinkedStore) -> None:
    epoch = (await store.link.create_topic("kv", Kind.KV, TopicConfig())).epoch
    await store.link.put_source(CERTS)
    lease = await store.link.acquire_lease("certs", holder="a", lease_ms=2_000)
    assert lease.source == SourceInfo(CERTS, b"", lease.fence, "a", 2_000, SourceReport(), -1, 0, epoch=epoch)
    with pytest.raises(LeaseHeld) as held:
        await store.link.acquire_lease("certs", holder="b", lease_ms=2_000)
    assert (held.value.remaining_ms, held.value.metadata["holder"]) == (2_000, "a")
    store.clock.advance(1)
    detail = SourceDetail(7, "STOPPED: because", 8, ("careful",), "differs", 1, 9, 20, 30)
    report = SourceReport("STOPPED", "because", 12, 3, detail)
    assert await store.link.renew_lease("certs", fence=lease.fence, report=report) == Renewal(
        2_000, changeable=CERTS.changeable
    )
    store.clock.advance(0.5)
    info = await store.link.get_source("certs")
    later = replace(report, detail=replace(detail, state_ms=507, decision_ms=508, verified_ms=509))
    assert info == SourceInfo(CERTS, b"", lease.fence, "a", 1_500, later, 500, 0, epoch=epoch)
    for fence in (lease.fence + 1, lease.fence - 1 or lease.fence + 2):
        with pytest.raises(StaleFence):
            await store.link.renew_lease("certs", fence=fence, report=report)
        with pytest.raises(StaleFence):
            await store.link.release_lease("certs", fence=fence)
    await store.link.release_lease("certs", fence=lease.fence)
    other = await store.link.acquire_lease("certs", holder="b", lease_ms=0)
    assert (other.fence > lease.fence, other.source.lease_remaining_ms) == (True, 5_000)


@pytest.mark.parametrize(("holder", "lease_ms"), [("", 0), ("h" * 256, 0), ("a", 99), ("a", 60_001)])
async def test_lease_bounds(store: LinkedStore, holder: str, lease_ms: int) -> None:
    await store.link.create_topic("kv", Kind.KV, TopicConfig())
    await store.link.put_source(CERTS)
    with pytest.raises(InvalidArgument):
        await store.link.acquire_lease("certs", holder=holder, lease_ms=lease_ms)


async def test_report_of_the_previous_holder_ends_with_the_next_lease(store: LinkedStore) -> None:
    await store.link.create_topic("kv", Kind.KV, TopicConfig())
    await store.link.put_source(CERTS)
    fence = (await store.link.acquire_lease("certs", holder="a", lease_ms=2_000)).fence
    await store.link.renew_lease("certs", fence=fence, report=SourceReport("LIVE", "because", 12, 0, SourceDetail(5)))
    await store.link.release_lease("certs", fence=fence)
    assert (await store.link.get_source("certs")).report.state == "LIVE"
    lease = await store.link.acquire_lease("certs", holder="b", lease_ms=2_000)
    assert lease.source.report == SourceReport("CONNECTING", "", 12, 0)
