"""Ingest's metrics: all from the start, each source's own, equal to the work done; health by connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.forwarding.stats import ForwardedCalls
from eddyline.core.model.source import SourceDefinition
from eddyline.core.telemetry import names as telemetry
from eddyline.ingest import metrics as ingest_metrics_module
from eddyline.ingest.copy.progress import STATES, CopyProgress
from eddyline.ingest.metrics import ingest_metrics
from eddyline.ingest.verify.verify import VerifyOptions
from tests.support.manual_clock import ManualClock
from tests.support.telemetry.scrape import Scrape, check_complete, in_place

if TYPE_CHECKING:
    from eddyline.ingest.role import IngestRole
    from tests.support.ingest.kit import BucketKit, SourceKit

PER_SOURCE = {
    telemetry.INGEST_APPLIED_RECORDS,
    telemetry.INGEST_CONSUMERS,
    telemetry.INGEST_RESYNCS,
    telemetry.INGEST_GAPS,
    telemetry.INGEST_SYNTHETIC_DELETES,
    telemetry.INGEST_DEAD_LETTERS,
}


async def now(role: IngestRole) -> Scrape:
    return in_place(await ingest_metrics(role, ForwardedCalls(1)))


async def counts(role: IngestRole, source: str) -> dict[str, float]:
    """Counts of one source that are not zero."""
    seen = await now(role)
    return {name: value for name in PER_SOURCE if (value := seen.value(name, source=source))}


async def test_all_are_there_before_any_source(kit: BucketKit) -> None:
    async with kit.ingest() as role:
        await role.connection.wait_connected()
        seen = await now(role)
        check_complete(seen, "ingest")
        assert not any(seen.series(name) for name in PER_SOURCE)
        assert seen.value(telemetry.INGEST_LEASES) == 0
        assert seen.value(telemetry.INGEST_NATS_CONNECTED) == 1


async def test_counts_of_a_source_are_what_was_done(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    await bucket.put("a", b"1")
    await kit.make_source()
    async with kit.ingest() as role:
        await kit.reaches(await bucket.put("b", b"2"))
        await kit.is_state("LIVE")
        seen = await now(role)
        check_complete(seen, "ingest")
        assert await counts(role, kit.bucket) == {telemetry.INGEST_APPLIED_RECORDS: 2, telemetry.INGEST_CONSUMERS: 1}
        states = seen.series(telemetry.INGEST_SOURCE_STATE)
        assert set(states) == {(kit.bucket, state) for state in STATES}
        assert [state for (_, state), value in states.items() if value] == ["LIVE"]
        assert seen.value(telemetry.INGEST_SOURCE_POSITION, source=kit.bucket) == 2
        assert seen.value(telemetry.INGEST_SOURCE_LAG, source=kit.bucket) == 0
        assert seen.value(telemetry.INGEST_SOURCE_LAG_SECONDS, source=kit.bucket) == 0
        assert 0 <= seen.value(telemetry.INGEST_SOURCE_REPORT_SECONDS, source=kit.bucket) < 10
        assert seen.value(telemetry.INGEST_LEASES) == 1
        assert 1 <= seen.value(telemetry.INGEST_APPLY_SECONDS) <= 2


async def test_lag_is_a_metric_while_the_store_accepts_no_report(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest() as role:
        await kit.reaches(await bucket.put("a", b"1"))
        kit.link.applies_open.clear()
        await bucket.put("a", b"2")
        await kit.until(lambda: kit.link.applying > 0)
        seen = await now(role)
        assert seen.value(telemetry.INGEST_SOURCE_LAG, source=kit.bucket) == 1
        assert seen.value(telemetry.INGEST_SOURCE_LAG_SECONDS, source=kit.bucket) > 0
        kit.link.applies_open.set()
        await kit.reaches(2)


async def test_purge_counts_its_resync_its_deletes_and_its_gap(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest():
        await bucket.put("a", b"1")
        await kit.reaches(await bucket.put("b", b"2"))
    await bucket.put("c", b"3")
    await kit.js.purge_stream(f"KV_{kit.bucket}")
    async with kit.ingest() as role:
        await kit.is_state("LIVE")
        gaps = len(await kit.gaps())
        deleted = len(await kit.records()) - gaps - 2
        assert deleted == 2
        assert await counts(role, kit.bucket) == {
            telemetry.INGEST_APPLIED_RECORDS: deleted + gaps,
            telemetry.INGEST_CONSUMERS: 1,
            telemetry.INGEST_RESYNCS: 1,
            telemetry.INGEST_GAPS: gaps,
            telemetry.INGEST_SYNTHETIC_DELETES: deleted,
        }


async def test_dead_letter_and_verification_count(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_bucket(bucket_name, history=4)
    await sources.define(SourceDefinition("s", "t", bucket_name, dead_letter_topic="letters"))
    headers = {f"H{number}": "x" for number in range(100)}  # more than a record has
    await sources.js.publish(f"$KV.{bucket_name}.a", b"misfit", headers=headers)
    last = await bucket.put("b", b"2")
    async with sources.ingest() as role:
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
        definition = (await sources.link.get_source("s")).definition
        await role.verifier.verify(definition, VerifyOptions(role.new_compare_name(), 0.2, 100))
        seen = await now(role)
        assert seen.value(telemetry.INGEST_DEAD_LETTERS, source="s") == 1
        assert seen.value(telemetry.INGEST_GAPS, source="s") == 1
        assert seen.value(telemetry.INGEST_VERIFICATIONS) == 1
        assert seen.value(telemetry.INGEST_DRIFTED_KEYS) == 0, "the key of the letter is no drift"
        assert seen.value(telemetry.INGEST_SOURCE_DRIFTED_KEYS, source="s") == 0


async def test_sources_beyond_the_bound_are_counted_and_not_listed(
    kit: BucketKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_metrics_module, "LISTED_SOURCES_MAX", 2)
    await kit.make_bucket()
    await kit.make_sources(3)
    async with kit.ingest() as role:
        await kit.until(lambda: len(role.ownership.held) == 3)
        seen = await now(role)
        assert set(seen.series(telemetry.INGEST_SOURCE_LAG)) == {(f"{kit.bucket}.0",), (f"{kit.bucket}.1",)}
        assert seen.value(telemetry.INGEST_LEASES) == 3
        assert seen.value(telemetry.INGEST_UNLISTED_SOURCES) == 1
    assert (await now(role)).series(telemetry.INGEST_SOURCE_LAG) == {}, "its leases are given back"


def test_lag_in_seconds_is_since_it_was_last_level() -> None:
    clock = ManualClock()
    progress = CopyProgress(clock, "s")
    progress.set_head(5)
    clock.advance(2.0)
    assert progress.lag_s == 2.0
    progress.position_revision = 5
    assert progress.lag_s == 0.0
    clock.advance(10.0)
    progress.set_head(6)
    assert progress.lag_s == 0.0
    clock.advance(3.0)
    progress.set_head(9)
    progress.position_revision = 8
    assert progress.lag_s == 3.0
    progress.switch_stream(9, 9)
    assert progress.lag_s == 0.0
