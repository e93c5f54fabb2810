"""Comparison of bucket and fold key by key, and the service over it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import pytest

from eddyline.core.errors import (
    BucketNotFound,
    InvalidArgument,
    InvalidName,
    NotKv,
    PageTokenInvalid,
    SourceExists,
    SourceNotFound,
)
from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.record import KEY_BYTES_MAX, META_ENTRIES_MAX, Op
from eddyline.ingest.rpc.source_service import SourceServicer
from eddyline.ingest.rpc.status import ingest_status
from eddyline.v1 import apply_pb2, cluster_pb2, source_pb2
from tests.support.ingest.fold_tampering import corrupt_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.ingest.role import IngestRole
    from tests.support.ingest.kit import BucketKit


@asynccontextmanager
async def serving(kit: BucketKit) -> AsyncIterator[tuple[SourceServicer, IngestRole]]:
    """The service of a running replica, called without gRPC."""
    async with kit.ingest() as role:
        await role.connection.wait_connected()
        servicer = SourceServicer(
            kit.link,
            owner=role.ownership,
            comparer=role.comparer,
            verifier=role.verifier,
            new_name=role.new_compare_name,
            file=role.file,
            jetstream=role.jetstream,
        )
        yield servicer, role


def create(kit: BucketKit) -> source_pb2.CreateSourceRequest:
    """Create the kit's source."""
    return source_pb2.CreateSourceRequest(
        definition=apply_pb2.SourceDefinition(name=kit.bucket, topic=kit.bucket, bucket=kit.bucket)
    )


def compare(kit: BucketKit) -> source_pb2.CompareSourceRequest:
    """Compare without time to settle."""
    return source_pb2.CompareSourceRequest(source=kit.bucket, settle_ms=1)


async def test_equal_bucket_and_fold_have_no_difference(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    for number in range(150):
        await bucket.put(f"k{number}", b"%d" % number)
    await bucket.delete("k0")
    await bucket.purge("k1")
    last = await bucket.put("k2", b"")
    async with serving(kit) as (service, _):
        await service.CreateSource(create(kit), None)
        await kit.reaches(last)
        answer = await service.CompareSource(compare(kit), None)
        assert len(await kit.consumers()) == 1
    assert (answer.bucket_count, answer.fold_count, answer.difference_count) == (148, 148, 0)
    assert answer.position_revision == last


async def test_ten_comparisons_leave_no_consumer_behind(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    last = await bucket.put("k", b"1")
    async with serving(kit) as (service, _):
        await service.CreateSource(create(kit), None)
        await kit.reaches(last)
        before = await kit.consumers()
        for _ in range(10):
            assert (await service.CompareSource(compare(kit), None)).difference_count == 0
        assert await kit.consumers() == before


async def test_each_kind_of_difference_is_named_with_its_revisions(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    for key in ("missing", "same", "value"):
        last = await bucket.put(key, b"1")
    async with serving(kit) as (service, _):
        await service.CreateSource(create(kit), None)
        await kit.reaches(last)
        corrupt_row(kit.store, kit.bucket, b"surplus", b"1")  # at revision 1, as the next one
        corrupt_row(kit.store, kit.bucket, b"value", b"other")
        corrupt_row(kit.store, kit.bucket, b"missing", None)
        answer = await service.CompareSource(compare(kit), None)
        limited = await service.CompareSource(
            source_pb2.CompareSourceRequest(source=kit.bucket, settle_ms=1, limit=1), None
        )
    differences = [(one.key, one.kind, one.bucket_revision, one.fold_revision) for one in answer.differences]
    assert differences == [
        (b"missing", source_pb2.DIFFERENCE_KIND_MISSING, 1, 0),
        (b"surplus", source_pb2.DIFFERENCE_KIND_SURPLUS, 0, 1),
        (b"value", source_pb2.DIFFERENCE_KIND_VALUE, 3, 1),
    ]
    assert answer.difference_count == limited.difference_count == 3
    assert len(limited.differences) == 1


async def test_messages_that_no_record_holds_are_differences_of_their_keys(
    kit: BucketKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("copy.decode", "copy.consumer"):
        monkeypatch.setattr(f"eddyline.ingest.{module}.SOURCE_DATA_META_BYTES_MAX", 1_000)
    bucket = await kit.make_bucket()
    await bucket.put("before", b"1")
    long_key = "k" * (KEY_BYTES_MAX + 1)
    await bucket.put("large", b"x" * 1_001)
    await kit.js.publish(f"$KV.{kit.bucket}.{long_key}", b"1")
    many = {f"h{number}": "x" for number in range(META_ENTRIES_MAX + 1)}
    await kit.js.publish(f"$KV.{kit.bucket}.many", b"1", headers=many)
    async with serving(kit) as (service, _):
        await service.CreateSource(create(kit), None)
        await kit.is_state("OVERSIZE")
        assert "key large" in (await kit.source()).report.reason
        answer = await service.CompareSource(compare(kit), None)
    missing = source_pb2.DIFFERENCE_KIND_MISSING
    assert {one.key: one.kind for one in answer.differences} == {
        b"large": missing,
        long_key.encode(): missing,
        b"many": missing,
    }
    assert (answer.bucket_count, answer.fold_count) == (4, 1)


async def test_keys_under_way_settle(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with serving(kit) as (service, _):
        await kit.is_state("LIVE")
        for number in range(50):
            await bucket.put(f"k{number % 7}", b"%d" % number)
        answer = await service.CompareSource(source_pb2.CompareSourceRequest(source=kit.bucket), None)
    assert answer.difference_count == 0


async def test_create_makes_the_topic_and_copying_starts_at_once(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    last = await bucket.put("a", b"1")
    async with serving(kit) as (service, _):
        created = await service.CreateSource(create(kit), None)
        again = await service.CreateSource(create(kit), None)
        assert created.source.definition == again.source.definition
        await kit.reaches(last)
        await kit.is_state("LIVE")
        source = (await service.GetSource(source_pb2.GetSourceRequest(source=kit.bucket), None)).source
        assert source.status == source_pb2.SOURCE_STATUS_LIVE
        assert (source.position_revision, source.last_revision, source.lag, source.head_seq) == (1, 1, 0, 1)
        assert source.holder == "one"
        await service.DeleteSource(source_pb2.DeleteSourceRequest(source=kit.bucket), None)

        async def is_gone() -> bool:
            return not await kit.store.list_sources()

        await kit.until(is_gone)
        with pytest.raises(SourceNotFound):
            await service.GetSource(source_pb2.GetSourceRequest(source=kit.bucket), None)
    assert await kit.fold() == {"a": b"1"}


async def test_bad_requests_are_refused_with_their_reason(kit: BucketKit) -> None:
    async with serving(kit) as (service, _):
        request = create(kit)
        request.definition.bucket = "a.b"
        with pytest.raises(InvalidArgument):
            await service.CreateSource(request, None)
        request = create(kit)
        request.definition.name = "-"
        with pytest.raises(InvalidName):
            await service.CreateSource(request, None)
        await kit.link.create_topic("log", Kind.LOG, TopicConfig())
        request = create(kit)
        request.definition.topic = "log"
        with pytest.raises(NotKv):
            await service.CreateSource(request, None)
        await service.CreateSource(create(kit), None)
        request = create(kit)
        request.definition.bucket = "other"
        with pytest.raises(SourceExists):
            await service.CreateSource(request, None)
        with pytest.raises(BucketNotFound):
            await service.CompareSource(compare(kit), None)
        for bad in (
            source_pb2.CompareSourceRequest(source=kit.bucket, settle_ms=60_001),
            source_pb2.CompareSourceRequest(source=kit.bucket, limit=10_001),
        ):
            with pytest.raises(InvalidArgument):
                await service.CompareSource(bad, None)
        with pytest.raises(PageTokenInvalid):
            await service.ListSources(source_pb2.ListSourcesRequest(page_token="x"), None)
        with pytest.raises(InvalidArgument):
            await service.ListSources(source_pb2.ListSourcesRequest(page_size=-1), None)


async def test_list_goes_by_name_in_pages(kit: BucketKit) -> None:
    for name in ("b", "c", "a"):
        await kit.link.create_topic(name, Kind.KV, TopicConfig())
        await kit.link.put_source(SourceDefinition(name=name, topic=name, bucket=f"{kit.bucket}-{name}"))
    async with serving(kit) as (service, _):
        first = await service.ListSources(source_pb2.ListSourcesRequest(page_size=2), None)
        rest = await service.ListSources(
            source_pb2.ListSourcesRequest(page_size=2, page_token=first.next_page_token), None
        )
    assert [source.definition.name for source in (*first.sources, *rest.sources)] == ["a", "b", "c"]
    assert rest.next_page_token == ""


async def test_status_and_health_tell_each_source(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with serving(kit) as (_, role):
        await kit.reaches(await bucket.put("a", b"1"))
        await kit.is_state("LIVE")
        status = ingest_status(role.readiness, role.ownership, role.verifier)
    assert status.ready
    detail = cast("cluster_pb2.IngestStatus", status.detail)
    assert detail.nats_connected
    (source,) = detail.sources
    assert (source.source, source.state, source.position_revision, source.lag) == (kit.bucket, "LIVE", 1, 0)
    assert (await kit.records())[0].op == Op.PUT
