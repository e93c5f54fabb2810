"""Scheduled verification: times, one at a time, log lines, and repair."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eddyline.core.errors import NatsUnreachable
from eddyline.core.model.source import SourceDefinition
from eddyline.ingest.nats.jetstream import JetStream
from tests.support.ingest.fold_tampering import corrupt_row

if TYPE_CHECKING:
    import pytest

    from tests.support.ingest.kit import SourceKit

INTERVAL_MS = 1_000


async def copied(sources: SourceKit, source: str, topic: str, bucket_name: str) -> None:
    bucket = await sources.make_bucket(bucket_name, history=2)
    await sources.define(SourceDefinition(source, topic, bucket_name))
    for number in range(5):
        await bucket.put(f"k{number}", b"%d" % number)


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, object]]:
    return [vars(record)["fields"] for record in caplog.records if record.getMessage() == event]


async def test_each_live_source_is_verified_again_and_again(
    sources: SourceKit, bucket_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name in ("a", "b"):
        await copied(sources, name, name, f"{bucket_name}-{name}")
    await sources.link.control_source("b", paused=True)
    async with sources.ingest(verify_interval_ms=INTERVAL_MS) as role:

        async def is_enough() -> bool:
            return role.verifier.verification_count >= 2

        await sources.until(is_enough)
        progress = role.ownership.held["a"].progress
        assert 0 <= progress.verified_ms < 10_000
        assert role.ownership.held["b"].progress.verified_ms == -1
    entries = said(caplog, "source verified")
    assert {entry["source"] for entry in entries} == {"a"}
    assert entries[0] | {"source": "a", "bucket": 5, "fold": 5, "differences": 0, "position": 5} == entries[0]
    assert not said(caplog, "source drifted")


async def test_drift_is_logged_as_an_error_and_counted_and_stays_without_repair(
    sources: SourceKit, bucket_name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.ingest.verify.schedule.SETTLE_S", 0.2)
    await copied(sources, "a", "a", bucket_name)
    async with sources.ingest(verify_interval_ms=INTERVAL_MS) as role:
        await sources.is_state("a", "LIVE")
        corrupt_row(sources.link, "a", b"k3", b"x")

        async def is_found() -> bool:
            return role.ownership.held["a"].progress.drift_count == 1

        await sources.until(is_found)
        assert role.verifier.drifted_key_count >= 1
        assert (await sources.fold("a"))[b"k3"] == b"x"
        assert (await sources.link.get_source("a")).control.resync_serial == 0
        await sources.until(lambda: _has(caplog, "source drifted"))
    entry = said(caplog, "source drifted")[0]
    assert entry | {"differences": 1, "left": 1, "keys": "k3", "repair": "not requested"} == entry
    (level,) = {record.levelname for record in caplog.records if record.getMessage() == "source drifted"}
    assert level == "ERROR"


async def _has(caplog: pytest.LogCaptureFixture, event: str) -> bool:
    return bool(said(caplog, event))


async def test_drift_is_repaired_by_a_schedule_with_repair(
    sources: SourceKit, bucket_name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.ingest.verify.schedule.SETTLE_S", 0.2)
    await copied(sources, "a", "a", bucket_name)
    async with sources.ingest(verify_interval_ms=INTERVAL_MS, verify_repair=True) as role:
        await sources.is_state("a", "LIVE")
        corrupt_row(sources.link, "a", b"k3", b"x")
        corrupt_row(sources.link, "a", b"k4", None)

        async def is_mended() -> bool:
            return (await sources.fold("a"))[b"k3"] == b"3" and bool(said(caplog, "source drifted"))

        await sources.until(is_mended)
        assert await sources.fold("a") == {b"k%d" % number: b"%d" % number for number in range(5)}
        assert role.verifier.drifted_key_count == 2
    entry = said(caplog, "source drifted")[0]
    assert entry | {"differences": 2, "left": 0, "keys": "k3, k4", "repair": "done"} == entry


async def test_never_is_never(sources: SourceKit, bucket_name: str) -> None:
    await copied(sources, "a", "a", bucket_name)
    async with sources.ingest(verify_interval_ms=0) as role:
        await sources.is_state("a", "LIVE")
        assert role._schedule is None


async def test_bucket_that_cannot_be_read_is_logged_and_tried_again(
    sources: SourceKit, bucket_name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await copied(sources, "a", "a", bucket_name)
    async with sources.ingest(verify_interval_ms=INTERVAL_MS) as role:
        await sources.is_state("a", "LIVE")

        async def fail(*_: object) -> None:
            raise NatsUnreachable("not now")

        with monkeypatch.context() as patch:
            patch.setattr(JetStream, "stream", fail)
            await sources.until(lambda: _has(caplog, "source not verified"))

        async def is_done() -> bool:
            return role.verifier.verification_count >= 1

        await sources.until(is_done)
