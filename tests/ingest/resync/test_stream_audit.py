"""Messages that leave a bucket without a trace: found by an audit while live, and at every resume."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Final

import pytest
from nats.js.api import DiscardPolicy

from eddyline.core.records.record import GapReason, Op
from eddyline.ingest.config import IngestSettings
from eddyline.ingest.nats.connection import Connection
from eddyline.ingest.nats.jetstream import JetStream
from eddyline.ingest.nats.login import nats_access
from eddyline.ingest.nats.stream import Stream
from eddyline.ingest.resync.resync import resync
from eddyline.ingest.resync.stream_audit import (
    DOUBT_AUDITS,
    RETRY_S,
    SHARE,
    AuditFinding,
    ComparisonPace,
    StreamAudit,
    compare_figures,
)
from tests.ingest.resync.test_resume import configure, copied, gap_ranges
from tests.support.ingest.bucket_stream import BUCKET_STREAM
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from eddyline.core.model.read import RangePage
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.copy.forward import Forward
    from eddyline.ingest.copy.position import StreamPosition
    from eddyline.ingest.resync.resync import ResyncResult
    from tests.support.ingest.kit import BucketKit

AUDIT_S: Final = 0.2
INTERVAL_S: Final = 10.0
"""Audit interval of tests on a manual clock."""


class Unanswered(JetStream):
    """Counts requests for the stream."""

    request_count = 0

    async def stream(self, bucket: str) -> Stream:
        self.request_count += 1
        return await super().stream(bucket)


class Still(JetStream):
    """JetStream with a stream that never changes."""

    async def refresh(self, stream: Stream) -> Stream:
        return stream


class AuditCounts:
    """Counts audits, comparisons and resyncs of an ingest under test."""

    def __init__(self, kit: BucketKit, monkeypatch: pytest.MonkeyPatch) -> None:
        self.audited = 0
        self.compared = 0
        self.resynced = 0
        self._at = kit
        ask, read, bring_in_step = JetStream.stream, kit.link.range_entries, resync

        async def stream(jetstream: JetStream, bucket: str) -> Stream:
            self.audited += 1
            return await ask(jetstream, bucket)

        def range_entries(topic: str) -> AsyncIterator[RangePage]:
            self.compared += 1
            return read(topic)

        async def counted(
            *,
            jetstream: JetStream,
            stream: Stream,
            link: StoreLink,
            topic: str,
            position: StreamPosition | None,
            forward: Forward,
            resync_serial: int,
        ) -> ResyncResult:
            self.resynced += 1
            return await bring_in_step(
                jetstream=jetstream,
                stream=stream,
                link=link,
                topic=topic,
                position=position,
                forward=forward,
                resync_serial=resync_serial,
            )

        monkeypatch.setattr("eddyline.ingest.sources.source_run.resync", counted)
        monkeypatch.setattr(JetStream, "stream", stream)
        monkeypatch.setattr(kit.link, "range_entries", range_entries)

    async def wait_for_audit(self) -> None:
        """Wait for another audit."""
        before = self.audited
        await self._at.until(lambda: self.audited > before)


async def healed(kit: BucketKit, expected: dict[str, bytes | None]) -> None:
    """Wait until the fold is as expected and the source has caught up again."""

    async def is_healed() -> bool:
        report = (await kit.source()).report
        return await kit.fold() == expected and report.state == "LIVE" and report.lag == 0

    await kit.until(is_healed)


@pytest.mark.parametrize(
    ("after", "finding"),
    [
        (replace(BUCKET_STREAM, server_ns=200), AuditFinding.STILL),
        (replace(BUCKET_STREAM, last_revision=12, message_count=12, subject_count=7), AuditFinding.STILL),
        (replace(BUCKET_STREAM, last_revision=12), AuditFinding.DOUBT),
        (replace(BUCKET_STREAM, last_revision=12, message_count=11, subject_count=6), AuditFinding.DOUBT),
        (replace(BUCKET_STREAM, last_revision=20, message_count=20, subject_count=4), AuditFinding.LOSS),
        (replace(BUCKET_STREAM, message_count=9), AuditFinding.LOSS),
        (replace(BUCKET_STREAM, last_revision=30, message_count=0, subject_count=0), AuditFinding.LOSS),
        (replace(BUCKET_STREAM, first_revision=11, message_count=0, subject_count=0), AuditFinding.LOSS),
    ],
)
def test_figures_that_newer_revisions_do_not_explain_are_a_loss(after: Stream, finding: AuditFinding) -> None:
    assert compare_figures(BUCKET_STREAM, after) is finding


def test_passed_age_is_grave_unless_the_server_marks_it() -> None:
    before = replace(BUCKET_STREAM, max_age_ns=90)
    after = replace(before, server_ns=100, last_revision=12)
    assert compare_figures(before, after) is AuditFinding.LOSS
    assert compare_figures(before, replace(after, server_ns=99)) is AuditFinding.DOUBT
    marked = replace(before, expiry_markers=True)
    assert compare_figures(marked, replace(marked, last_revision=12)) is AuditFinding.DOUBT


def test_messages_that_came_and_left_since_the_last_audit_are_a_loss() -> None:
    empty = replace(BUCKET_STREAM, first_ns=0, last_revision=0, message_count=0, subject_count=0)
    assert compare_figures(empty, replace(empty, last_revision=20)) is AuditFinding.LOSS
    lively = replace(empty, max_age_ns=90)
    after = replace(lively, last_revision=20, message_count=1, subject_count=1)
    assert compare_figures(lively, replace(after, server_ns=190)) is AuditFinding.LOSS
    assert compare_figures(lively, replace(after, server_ns=189)) is AuditFinding.DOUBT


def test_eviction_by_a_limit_is_grave() -> None:
    before = replace(BUCKET_STREAM, discard_new=False, limited=True)
    assert compare_figures(before, replace(before, last_revision=12, first_revision=3)) is AuditFinding.LOSS


def unconnected(kit: BucketKit, clock: ManualClock) -> Connection:
    """Return a connection that is never opened."""
    access = nats_access(IngestSettings(nats_url=kit.url))
    return Connection(access, name="", clock=clock, rng=Random(1), on_change=lambda: None)


def audit_of(
    kit: BucketKit,
    jetstream: JetStream,
    clock: ManualClock,
    changed: Callable[[Stream, int], Awaitable[int]],
    values: ComparisonPace,
    *,
    resumed: bool = False,
) -> StreamAudit:
    """Return the audit of a stream of `BUCKET_STREAM`'s figures, due each `INTERVAL_S`."""
    return StreamAudit(
        BUCKET_STREAM,
        jetstream=jetstream,
        link=kit.link,
        topic="b",
        resyncs=asyncio.Semaphore(1),
        clock=clock,
        changed=changed,
        values=values,
        resumed=resumed,
        audit_interval_s=INTERVAL_S,
    )


async def test_audits_keep_their_interval_and_are_few_while_nats_is_away(kit: BucketKit) -> None:
    clock = ManualClock()
    jetstream = Unanswered(unconnected(kit, clock))

    async def changed(_look: Stream, _through: int) -> int:
        raise AssertionError("nothing was removed")

    audit = audit_of(kit, jetstream, clock, changed, ComparisonPace(0.0, INTERVAL_S))
    clock.advance(9.9)
    assert await audit.check(10, drained=True) == ""
    assert jetstream.request_count == 0
    clock.advance(0.2)
    for _ in range(3):
        assert await audit.check(10, drained=True) == ""
    assert jetstream.request_count == 1
    clock.advance(RETRY_S + 0.1)
    for _ in range(3):
        assert await audit.check(10, drained=True) == ""
    assert jetstream.request_count == 2


async def test_attempts_one_after_another_compare_values_no_more_than_their_share(kit: BucketKit) -> None:
    clock, took_s = ManualClock(), 3.0
    values = ComparisonPace(clock.monotonic_s(), INTERVAL_S)
    jetstream = Still(unconnected(kit, clock))
    compared_s: list[float] = []

    async def changed(_look: Stream, _through: int) -> int:
        clock.advance(took_s)
        compared_s.append(clock.monotonic_s())
        return 0

    for _ in range(20):
        audit = audit_of(kit, jetstream, clock, changed, values, resumed=True)
        clock.advance(INTERVAL_S)
        assert await audit.check(BUCKET_STREAM.last_revision, drained=True) == ""
    assert len(compared_s) > 1
    assert all(later - earlier >= SHARE * took_s for earlier, later in pairwise(compared_s))


async def test_subject_purged_while_live_is_deleted_by_an_audit(
    kit: BucketKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await kit.make_copied_bucket()
    counts = AuditCounts(kit, monkeypatch)
    async with kit.ingest(audit_interval_s=AUDIT_S):
        await kit.is_state("LIVE")
        await bucket.put("kept", b"1")
        await kit.reaches(await bucket.put("gone", b"2"))
        await kit.is_state("LIVE")
        await kit.js.purge_stream(f"KV_{kit.bucket}", subject=f"$KV.{kit.bucket}.gone")
        await healed(kit, {"kept": b"1"})
    assert await kit.gaps() == []
    assert counts.resynced == 1


async def test_whole_purge_while_live_is_found_by_an_audit_and_reading_continues(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest(audit_interval_s=AUDIT_S):
        await bucket.put("a", b"1")
        await kit.reaches(await bucket.put("b", b"2"))
        await kit.is_state("LIVE")
        await kit.js.purge_stream(f"KV_{kit.bucket}")
        await healed(kit, {})
        await kit.reaches(await bucket.put("a", b"3"))
    assert await kit.fold() == {"a": b"3"}
    assert await kit.gaps() == []  # everything that was purged had been read
    assert (await kit.ops())[2:] == [(Op.DELETE, b"a"), (Op.DELETE, b"b"), (Op.PUT, b"a")]


async def test_purge_while_ingest_was_away_is_seen_with_nothing_written_after(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    await bucket.put("kept", b"1")
    await copied(kit, await bucket.put("gone", b"2"))
    await kit.js.purge_stream(f"KV_{kit.bucket}", subject=f"$KV.{kit.bucket}.gone")
    async with kit.ingest():
        await healed(kit, {"kept": b"1"})
    assert await kit.revision() == 2
    await kit.js.purge_stream(f"KV_{kit.bucket}")
    async with kit.ingest():
        await healed(kit, {})
        assert await kit.revision() == 2
        await kit.reaches(await bucket.put("new", b"3"))
    assert await kit.fold() == {"new": b"3"}
    assert await kit.gaps() == []


async def test_keys_that_expire_without_markers_are_deleted_by_an_audit(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket(history=5, ttl=1)
    async with kit.ingest(audit_interval_s=AUDIT_S):
        await bucket.put("hot", b"0")
        for number in range(10):
            await bucket.put(f"k{number}", b"x")
        await kit.reaches(11)
        while set(await kit.fold()) != {"hot"}:
            await kit.reaches(await bucket.put("hot", b"again"))
        await healed(kit, {})
    assert await kit.gaps() == []


async def test_keys_that_came_and_expired_between_two_audits_are_deleted(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket(history=5, ttl=1)
    async with kit.ingest(audit_interval_s=3.0):
        await kit.is_state("LIVE")
        for number in range(5):
            last = await bucket.put(f"k{number}", b"x")
        await kit.reaches(last)
        await healed(kit, {})


async def test_key_that_leaves_while_another_comes_is_found_by_its_age(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket(history=1, ttl=1)
    async with kit.ingest(audit_interval_s=AUDIT_S):
        await kit.reaches(await bucket.put("first", b"x"))
        number = 0
        while "first" in await kit.fold():
            number += 1
            await kit.reaches(await bucket.put(f"k{number}", b"x"))
        await healed(kit, {})


async def test_keys_evicted_by_a_limit_while_live_are_deleted(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    await configure(kit, discard=DiscardPolicy.OLD, max_msgs=3)
    await kit.make_source()
    async with kit.ingest(audit_interval_s=AUDIT_S):
        for number in range(8):
            await kit.reaches(await bucket.put(f"k{number}", b"x"))
        await healed(kit, {"k5": b"x", "k6": b"x", "k7": b"x"})
    assert await kit.gaps() == []


async def test_revisions_purged_unread_are_a_gap_without_a_later_one(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest(audit_interval_s=AUDIT_S):
        await kit.reaches(await bucket.put("a", b"1"))
        await kit.is_state("LIVE")
        # Nothing is taken while the store waits: more than the window is written, and purged.
        kit.link.applies_open.clear()
        for number in range(6_000):
            await kit.client.publish(f"$KV.{kit.bucket}.k{number}", b"x")
        while (await kit.js.stream_info(f"KV_{kit.bucket}")).state.last_seq < 6_001:
            await kit.client.flush()
        await kit.js.purge_stream(f"KV_{kit.bucket}")
        kit.link.applies_open.set()
        await kit.reaches(6_001)
        await healed(kit, {})
    read = {int.from_bytes(record.version, "big") for record in await kit.records() if record.op == Op.PUT}
    gap_revisions = {revision for first, last, _ in await gap_ranges(kit) for revision in range(first, last + 1)}
    assert read | gap_revisions == set(range(1, 6_002))
    assert {reason for _, _, reason in await gap_ranges(kit)} <= {GapReason.SOURCE_GAP}


async def test_hot_keys_make_no_resync_and_hardly_a_comparison(kit: BucketKit, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = await kit.make_copied_bucket(history=1)
    counts = AuditCounts(kit, monkeypatch)
    async with kit.ingest(audit_interval_s=AUDIT_S):
        await kit.is_state("LIVE")
        for number in range(200):
            await kit.reaches(await bucket.put(f"hot{number % 3}", b"%d" % number))
            if number % 20 == 0:
                await counts.wait_for_audit()
        await kit.is_state("LIVE")
    assert counts.resynced == 0
    assert counts.compared <= 1 + counts.audited // DOUBT_AUDITS
    assert await kit.fold() == {f"hot{number}": b"%d" % (197 + (number + 1) % 3) for number in range(3)}


async def test_key_that_came_and_left_between_audits_is_found_in_the_end(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket(history=1)
    async with kit.ingest(audit_interval_s=AUDIT_S):
        await kit.reaches(await bucket.put("kept", b"1"))
        await kit.is_state("LIVE")
        await kit.reaches(await bucket.put("gone", b"2"))
        await kit.js.purge_stream(f"KV_{kit.bucket}", subject=f"$KV.{kit.bucket}.gone")
        await healed(kit, {"kept": b"1"})
