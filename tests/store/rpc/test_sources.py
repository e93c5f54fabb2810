"""ApplyService: sources, leases, batches, and every refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, GapReason
from eddyline.ingest.copy.position import StreamPosition
from eddyline.v1 import source_pb2, source_pb2_grpc, topic_pb2
from eddyline.v1.apply_pb2 import (
    SOURCE_POLICY_RESYNC,
    SOURCE_POLICY_STOP,
    AcquireLeaseRequest,
    ApplyBatchRequest,
    ApplyServiceDeleteSourceRequest,
    ApplyServiceGetSourceRequest,
    ApplyServiceListSourcesRequest,
    ApplyStreamRequest,
    PutSourceRequest,
    ReleaseLeaseRequest,
    RenewLeaseRequest,
    SourceDefinition,
    SourceDetail,
)
from eddyline.v1.log_pb2 import ReadRecordsRequest
from eddyline.v1.types_pb2 import OP_GAP, OP_PUT, BinaryColumn, ColumnarBatch
from tests.store.rpc.requests import column, columns, keyed, rows
from tests.support.store.served import answers_of, refused, served_store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.store.served import ServedStore

AT_9 = StreamPosition(1, 9).encode()
LOG, KV = topic_pb2.TOPIC_KIND_LOG, topic_pb2.TOPIC_KIND_KV


async def put(store: ServedStore, name: str = "s", topic: str = "kv", bucket: str = "b") -> bool:
    request = PutSourceRequest(definition=SourceDefinition(name=name, topic=topic, bucket=bucket))
    return (await store.apply.PutSource(request)).created


async def leased(store: ServedStore, holder: str = "h") -> int:
    return (await store.apply.AcquireLease(AcquireLeaseRequest(source="s", holder=holder))).fence


def gap_and_put() -> ColumnarBatch:
    lost = Gap(0, 0, GapReason.SOURCE_GAP, source_identity=b"id", source_first=3, source_last=5)
    batch = ColumnarBatch(count=2, ops=bytes([OP_GAP, OP_PUT]))
    batch.key.CopyFrom(column(b"", b"a"))
    batch.key.validity = b"\x02"
    batch.data.CopyFrom(column(encode_gap(lost), b"1"))
    return batch


async def test_definition_is_stored_once_and_returned(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        assert await put(store) is True
        assert await put(store) is False
        source = (await store.apply.GetSource(ApplyServiceGetSourceRequest(source="s"))).source
        assert source.definition == SourceDefinition(
            name="s",
            topic="kv",
            bucket="b",
            on_expired=SOURCE_POLICY_RESYNC,
            on_recreated=SOURCE_POLICY_STOP,
        )
        assert (source.position, source.fence, source.holder, source.lease_remaining_ms) == (b"", 0, "", 0)
        assert source.reported_ms == -1
        topic = (await store.topics.GetTopic(topic_pb2.GetTopicRequest(topic="kv"))).topic
        assert topic.source == "s"


async def test_sources_that_cannot_be_are_refused(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        for name in ("kv", "other", "full"):
            await store.create(name)
        await store.log.AppendRecords(rows("full", keyed("a", "1")))
        await put(store)

        async def refuse(definition: SourceDefinition, reason: str) -> None:
            await refused(store.apply.PutSource(PutSourceRequest(definition=definition)), reason)

        await refused(store.apply.PutSource(PutSourceRequest()), "INVALID_ARGUMENT")
        await refuse(SourceDefinition(name="a b", topic="kv", bucket="b"), "INVALID_NAME")
        await refuse(SourceDefinition(name="t", topic="", bucket="b"), "INVALID_NAME")
        await refuse(SourceDefinition(name="t", topic="other"), "INVALID_ARGUMENT")
        await refuse(SourceDefinition(name="t", topic="other", bucket="b" * 256), "INVALID_ARGUMENT")
        await refuse(SourceDefinition(name="t", topic="nobody", bucket="b"), "TOPIC_NOT_FOUND")
        await refuse(SourceDefinition(name="t", topic="kv", bucket="b"), "TOPIC_HAS_SOURCE")
        await refuse(SourceDefinition(name="t", topic="full", bucket="b"), "TOPIC_NOT_EMPTY")
        await refuse(SourceDefinition(name="s", topic="kv", bucket="c"), "SOURCE_EXISTS")
        answer = await store.apply.ListSources(ApplyServiceListSourcesRequest())
        assert [source.definition.name for source in answer.sources] == ["s"]


async def test_pages_cover_all_sources(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        for name in ("b", "a", "c"):
            await store.create(name)
            await put(store, name=name, topic=name)
        found, token = [], ""
        while True:
            request = ApplyServiceListSourcesRequest(page_size=2, page_token=token)
            answer = await store.apply.ListSources(request)
            found.append([source.definition.name for source in answer.sources])
            token = answer.next_page_token
            if not token:
                break
        assert found == [["a", "b"], ["c"]]
        await refused(store.apply.ListSources(ApplyServiceListSourcesRequest(page_size=-1)), "INVALID_ARGUMENT")
        await refused(store.apply.ListSources(ApplyServiceListSourcesRequest(page_token="x")), "PAGE_TOKEN_INVALID")


async def test_every_call_refuses_unknown_and_invalid_source_names(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        for name, reason in (("nobody", "SOURCE_NOT_FOUND"), ("a b", "INVALID_NAME"), ("", "INVALID_NAME")):
            await refused(store.apply.GetSource(ApplyServiceGetSourceRequest(source=name)), reason)
            await refused(store.apply.DeleteSource(ApplyServiceDeleteSourceRequest(source=name)), reason)
            await refused(store.apply.AcquireLease(AcquireLeaseRequest(source=name, holder="h")), reason)
            await refused(store.apply.RenewLease(RenewLeaseRequest(source=name, fence=1)), reason)
            await refused(store.apply.ReleaseLease(ReleaseLeaseRequest(source=name, fence=1)), reason)
            empty = ApplyBatchRequest(source=name, fence=1, new=b"1")
            await refused(store.apply.ApplyBatch(empty), reason)
            full = ApplyBatchRequest(source=name, fence=1, new=b"1", batch=columns(key=[b"a"]))
            await refused(store.apply.ApplyBatch(full), reason)


async def test_lease_has_one_holder_and_growing_fences(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await put(store)
        first = await leased(store)
        error = await refused(store.apply.AcquireLease(AcquireLeaseRequest(source="s", holder="other")), "LEASE_HELD")
        assert error.metadata["holder"] == "h"
        assert 0 < int(error.metadata["remainingMs"]) <= 5_000
        second = await leased(store)
        assert second > first
        await refused(store.apply.RenewLease(RenewLeaseRequest(source="s", fence=first)), "STALE_FENCE")
        await refused(store.apply.ReleaseLease(ReleaseLeaseRequest(source="s", fence=first)), "STALE_FENCE")
        renewed = await store.apply.RenewLease(
            RenewLeaseRequest(source="s", fence=second, state="LIVE", source_last_revision=7, lag=2)
        )
        assert renewed.lease_remaining_ms == 5_000
        source = (await store.apply.GetSource(ApplyServiceGetSourceRequest(source="s"))).source
        assert (source.holder, source.fence, source.state) == ("h", second, "LIVE")
        assert (source.source_last_revision, source.lag, source.reported_ms) == (7, 2, 0)
        await store.apply.ReleaseLease(ReleaseLeaseRequest(source="s", fence=second))
        assert await leased(store, "other") > second


async def test_bad_lease_calls_are_refused(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await put(store)
        for acquire in (
            AcquireLeaseRequest(source="s"),
            AcquireLeaseRequest(source="s", holder="h" * 256),
            AcquireLeaseRequest(source="s", holder="h", lease_ms=99),
            AcquireLeaseRequest(source="s", holder="h", lease_ms=60_001),
            AcquireLeaseRequest(source="s", holder="h", lease_ms=-1),
        ):
            await refused(store.apply.AcquireLease(acquire), "INVALID_ARGUMENT")
        fence = await leased(store)
        for renew in (
            RenewLeaseRequest(source="s"),
            RenewLeaseRequest(source="s", fence=fence, state="s" * 65),
            RenewLeaseRequest(source="s", fence=fence, state_reason="s" * 1_025),
        ):
            await refused(store.apply.RenewLease(renew), "INVALID_ARGUMENT")
        await refused(store.apply.ReleaseLease(ReleaseLeaseRequest(source="s")), "INVALID_ARGUMENT")


async def test_batch_and_position_move_together_once(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = await store.create("kv")
        await put(store)
        fence = await leased(store)
        batch = columns(key=[b"a", b"b"], data=[b"1", b"2"], version=[b"\x07", b"\x08"])
        request = ApplyBatchRequest(source="s", fence=fence, new=b"8", batch=batch)
        first = await store.apply.ApplyBatch(request)
        assert (first.first_seq, first.last_seq, first.deduplicated, first.epoch) == (1, 2, False, made.epoch)
        again = await store.apply.ApplyBatch(request)
        assert (again.first_seq, again.last_seq, again.deduplicated) == (0, 0, True)
        moved = ApplyBatchRequest(source="s", fence=fence, previous=b"8", new=b"9")
        assert (await store.apply.ApplyBatch(moved)).first_seq == 0
        source = (await store.apply.GetSource(ApplyServiceGetSourceRequest(source="s"))).source
        assert (source.position, source.head_seq) == (b"9", 2)
        read = await store.log.ReadRecords(ReadRecordsRequest(topic="kv"))
        assert [(row.op, row.version) for row in read.items[0].rows.records] == [(OP_PUT, b"\x07"), (OP_PUT, b"\x08")]


async def test_gap_of_a_source_is_answered_in_its_place(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await put(store)
        fence = await leased(store)
        await store.apply.ApplyBatch(ApplyBatchRequest(source="s", fence=fence, new=b"1", batch=gap_and_put()))
        items = (await store.log.ReadRecords(ReadRecordsRequest(topic="kv"))).items
        assert [item.WhichOneof("item") for item in items] == ["gap", "rows"]
        assert (items[0].gap.seq, items[0].gap.source_first, items[0].gap.source_last) == (1, 3, 5)


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        pytest.param({"fence": 0}, "INVALID_ARGUMENT", "fence", id="no fence"),
        pytest.param({"fence": 99}, "STALE_FENCE", "", id="unknown fence"),
        pytest.param({"new": b""}, "INVALID_ARGUMENT", "new", id="no position"),
        pytest.param({"new": bytes(257)}, "INVALID_ARGUMENT", "new", id="long position"),
        pytest.param({"previous": bytes(257)}, "INVALID_ARGUMENT", "previous", id="long previous"),
        pytest.param({"previous": b"7"}, "STALE_POSITION", "", id="other previous"),
        pytest.param(
            {"batch": ColumnarBatch(key=BinaryColumn(values=b"a"))}, "MALFORMED_COLUMNS", "batch.count", id="no count"
        ),
        pytest.param(
            {"batch": ColumnarBatch(count=3, key=column(b"a"))}, "MALFORMED_COLUMNS", "key.offsets", id="malformed"
        ),
        pytest.param({"batch": columns(data=[b"1"])}, "KEY_REQUIRED", "key", id="no key"),
        pytest.param({"batch": columns(key=[bytes(1_025)])}, "RECORD_TOO_LARGE", "key", id="long key"),
        pytest.param(
            {"batch": columns(key=[b"a"], data=[bytes((8 << 20) + 1)])}, "RECORD_TOO_LARGE", "data", id="large data"
        ),
    ],
)
async def test_bad_batch_is_refused_and_the_position_stays(
    tmp_path: Path, changes: dict[str, object], reason: str, field: str
) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await put(store)
        fence = await leased(store)
        fields: dict[str, object] = {
            "source": "s",
            "fence": fence,
            "new": b"1",
            "batch": columns(key=[b"a"]),
            **changes,
        }
        error = await refused(store.apply.ApplyBatch(ApplyBatchRequest(**fields)), reason)  # type: ignore[arg-type]
        assert error.metadata.get("field", "") == field
        source = (await store.apply.GetSource(ApplyServiceGetSourceRequest(source="s"))).source
        assert (source.position, source.head_seq) == (b"", 0)


async def test_a_stream_applies_each_step_as_a_batch_and_answers_in_order(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = await store.create("kv")
        await put(store)
        fence = await leased(store)
        two = columns(key=[b"a", b"b"], data=[b"1", b"2"], version=[b"\x07", b"\x08"])
        steps = [
            ApplyStreamRequest(source="s", fence=fence, new=b"8", batch=two),
            ApplyStreamRequest(source="s", fence=fence, new=b"8", batch=two),
            ApplyStreamRequest(source="s", fence=fence, previous=b"8", new=b"9"),
            ApplyStreamRequest(source="s", fence=fence, previous=b"9", new=b"10", batch=columns(key=[b"a"])),
        ]
        answers, ended = await answers_of(store.apply.ApplyStream(iter(steps)))
        assert ended == ""
        assert [(answer.first_seq, answer.last_seq, answer.deduplicated) for answer in answers] == [
            (1, 2, False),
            (0, 0, True),
            (0, 0, False),
            (3, 3, False),
        ]
        assert {answer.epoch for answer in answers} == {made.epoch}
        source = (await store.apply.GetSource(ApplyServiceGetSourceRequest(source="s"))).source
        assert (source.position, source.head_seq) == (b"10", 3)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"previous": b"7"}, "STALE_POSITION"),
        ({"fence": 99}, "STALE_FENCE"),
        ({"fence": 0}, "INVALID_ARGUMENT"),
        ({"source": "other"}, "STREAM_ORDER"),
        ({"new": b""}, "INVALID_ARGUMENT"),
        ({"batch": columns(data=[b"1"])}, "KEY_REQUIRED"),
    ],
)
async def test_the_first_failure_ends_a_stream_of_batches(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await put(store)
        fence = await leased(store)
        first = ApplyStreamRequest(source="s", fence=fence, new=b"1", batch=columns(key=[b"a"]))
        second = {"source": "s", "fence": fence, "previous": b"1", "new": b"2", "batch": columns(key=[b"b"]), **changes}
        third = ApplyStreamRequest(source="s", fence=fence, previous=b"1", new=b"3", batch=columns(key=[b"c"]))
        steps = [first, ApplyStreamRequest(**second), third]  # type: ignore[arg-type]
        answers, ended = await answers_of(store.apply.ApplyStream(iter(steps)))
        assert ([answer.last_seq for answer in answers], ended) == ([1], reason)
        assert await store.head("kv") == 1


async def test_batch_of_an_older_lease_is_refused(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await put(store)
        old = await leased(store)
        new = await leased(store)
        late = ApplyBatchRequest(source="s", fence=old, new=b"1", batch=columns(key=[b"a"]))
        error = await refused(store.apply.ApplyBatch(late), "STALE_FENCE")
        assert error.metadata["fence"] == str(new)
        assert await store.head("kv") == 0


async def test_deleted_source_leaves_its_topic_and_records(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await put(store)
        fence = await leased(store)
        request = ApplyBatchRequest(source="s", fence=fence, new=b"1", batch=columns(key=[b"a"]))
        await store.apply.ApplyBatch(request)
        await store.apply.DeleteSource(ApplyServiceDeleteSourceRequest(source="s"))
        await refused(store.apply.ApplyBatch(request), "SOURCE_NOT_FOUND")
        assert (await store.log.AppendRecords(rows("kv", keyed("b", "1")))).first_seq == 2


async def test_a_report_with_too_much_in_it_is_refused(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await put(store)
        fence = await leased(store)
        too_much = (
            SourceDetail(warnings=["w"] * 17),
            SourceDetail(warnings=["w" * 1025]),
            SourceDetail(decision="d" * 1025),
            SourceDetail(file_drift="f" * 1025),
        )
        for detail in too_much:
            request = RenewLeaseRequest(source="s", fence=fence, state="LIVE", detail=detail)
            await refused(store.apply.RenewLease(request), "INVALID_ARGUMENT")
        state = (await store.apply.GetSource(ApplyServiceGetSourceRequest(source="s"))).source
        assert (state.reported_ms, state.HasField("detail")) == (-1, False)


async def test_the_store_answers_for_its_sources_without_an_ingest(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        for name in ("b", "a"):
            await store.create(name)
            await put(store, name=name, topic=name)
        fence = (await store.apply.AcquireLease(AcquireLeaseRequest(source="a", holder="h"))).fence
        for previous, new in ((b"", AT_9), (b"", AT_9)):  # what had been applied before is counted once
            await store.apply.ApplyBatch(
                ApplyBatchRequest(source="a", fence=fence, previous=previous, new=new, batch=gap_and_put())
            )
        store.clock.advance(2)
        detail = SourceDetail(decision="SNAPSHOT: from the beginning", warnings=["careful"], verified_ms=-1)
        report = RenewLeaseRequest(source="a", fence=fence, state="LIVE", source_last_revision=12, lag=3, detail=detail)
        await store.apply.RenewLease(report)
        store.clock.advance(60)  # the holder is gone
        sources = source_pb2_grpc.SourceServiceStub(store.channel)
        source = (await sources.GetSource(source_pb2.GetSourceRequest(source="a"))).source
        assert (source.status, source.position_revision, source.last_revision, source.lag) == (
            source_pb2.SOURCE_STATUS_LIVE,
            9,
            12,
            3,
        )
        assert (source.holder, source.reported_ms, source.gap_count) == ("", 60_000, 1)
        assert (source.gap_ms, source.changed_ms) == (62_000, 62_000)
        assert (source.detail.decision_ms, list(source.detail.warnings)) == (60_000, ["careful"])
        pages, token = [], ""
        while True:
            page = await sources.ListSources(source_pb2.ListSourcesRequest(page_size=1, page_token=token))
            pages.append([one.definition.name for one in page.sources])
            token = page.next_page_token
            if not token:
                break
        assert pages == [["a"], ["b"]]
        await refused(sources.GetSource(source_pb2.GetSourceRequest(source="nobody")), "SOURCE_NOT_FOUND")
        await refused(sources.GetSource(source_pb2.GetSourceRequest(source="a b")), "INVALID_NAME")
        await refused(sources.ListSources(source_pb2.ListSourcesRequest(page_size=-1)), "INVALID_ARGUMENT")
        await refused(sources.ListSources(source_pb2.ListSourcesRequest(page_token="x")), "PAGE_TOKEN_INVALID")
        await refused(sources.DeleteSource(source_pb2.DeleteSourceRequest(source="a")), "SERVED_ELSEWHERE")
