"""Sources stopped by a policy: verification of one, its lag, and the warning at a new stream."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from eddyline.core.codec.source import source_to_pb
from eddyline.core.model.source import SourceChange, SourceDefinition
from eddyline.ingest.copy.position import decode_position
from eddyline.ingest.verify.verify import VerifyOptions
from tests.support.command_line import command_at
from tests.support.ingest.fold_tampering import corrupt_row

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

    from eddyline.ingest.role import IngestRole
    from eddyline.ingest.verify.verify import VerifyResult
    from tests.support.ingest.kit import SourceKit


async def copied(sources: SourceKit, bucket_name: str, count: int = 3) -> KeyValue:
    """Make a bucket of so many keys, copied by a source `s` without a holder."""
    bucket = await sources.make_copied_bucket(bucket_name)
    last = 0
    for number in range(count):
        last = await bucket.put(f"k{number}", b"%d" % number)
    async with sources.ingest():
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
    return bucket


async def repaired(sources: SourceKit, role: IngestRole) -> VerifyResult:
    definition = (await sources.link.get_source("s")).definition
    return await role.verifier.verify(definition, VerifyOptions(role.new_compare_name(), 0.1, 10, repair=True))


async def is_not_requested(sources: SourceKit) -> bool:
    """True = no resync was requested."""
    return (await sources.link.get_source("s")).control.resync_serial == 0


async def test_recreated_bucket_is_not_adopted_by_a_repair(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await copied(sources, bucket_name)
    await sources.js.delete_key_value(bucket_name)
    await sources.make_bucket(bucket_name)
    async with sources.ingest() as role, sources.served(role) as address:
        await sources.is_state("s", "STREAM_RECREATED")
        command = command_at("127.0.0.1:1", monkeypatch, ingest=address)
        code, output = await command.text("verify", "s", "--repair", "--settle-ms", "100")
        assert code == 1
        assert f"3 keys differ, not repaired: s is STREAM_RECREATED: bucket {bucket_name} was recreated" in output
        assert "; `eddyline source resync s` copies its present state (" in output
        code, objects = await command.run("verify", "s", "--settle-ms", "100")
        assert code == 1
        assert objects[-1]["source_status"] == "STREAM_RECREATED"
        assert str(objects[-1]["source_reason"]).startswith(f"bucket {bucket_name} was recreated")
        code, output = await command.text("verify", "s", "--settle-ms", "100")
        assert "; the source is STREAM_RECREATED: bucket" in output
        assert await is_not_requested(sources)
        assert len(await sources.fold("t")) == 3


async def test_paused_source_of_a_recreated_bucket_is_not_repaired_either(sources: SourceKit, bucket_name: str) -> None:
    await copied(sources, bucket_name)
    await sources.link.control_source("s", paused=True)
    await sources.js.delete_key_value(bucket_name)
    await sources.make_bucket(bucket_name)
    async with sources.ingest() as role:
        await sources.is_state("s", "PAUSED")  # which may have been stored by the role before
        await role.connection.wait_connected()
        assert (await repaired(sources, role)).trouble.startswith("s is STREAM_RECREATED: ")
    assert await is_not_requested(sources)


async def test_source_that_ran_ahead_is_not_repaired(sources: SourceKit, bucket_name: str) -> None:
    bucket = await copied(sources, bucket_name)
    # As a stream restored from an old copy has it: our position is behind its end.
    position = decode_position((await sources.link.get_source("s")).position)
    assert position is not None
    await sources.move("s", replace(position, revision=9, sample=bytes(16)).encode())
    await bucket.put("k0", b"other")
    async with sources.ingest() as role:
        await sources.is_state("s", "CURSOR_AHEAD")
        result = await repaired(sources, role)
        assert result.comparison.difference_count == 1
        assert "s is CURSOR_AHEAD: " in result.trouble
    assert await is_not_requested(sources)


async def test_source_that_stopped_at_expired_revisions_is_not_repaired(sources: SourceKit, bucket_name: str) -> None:
    bucket = await copied(sources, bucket_name)
    await sources.link.update_source("s", SourceChange(on_expired="STOP"))
    config = (await sources.js.stream_info(f"KV_{bucket_name}")).config
    await sources.js.update_stream(config.evolve(max_msgs=2, discard="old"))
    for number in range(5):
        await bucket.put(f"n{number}", b"x")
    async with sources.ingest() as role:
        await sources.is_state("s", "CURSOR_EXPIRED")
        result = await repaired(sources, role)
        assert result.trouble.startswith("s is CURSOR_EXPIRED: revisions 4 to 6 of bucket ")
        assert result.report.state == "CURSOR_EXPIRED"
    assert await is_not_requested(sources)


async def test_scheduled_repair_does_not_adopt_a_bucket_recreated_meanwhile(
    sources: SourceKit, bucket_name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.ingest.verify.schedule.SETTLE_S", 0.2)
    await copied(sources, bucket_name)
    async with sources.ingest(verify_interval_ms=3_600_000, verify_repair=True) as role:
        await sources.is_state("s", "LIVE")
        await sources.js.delete_key_value(bucket_name)
        await sources.make_bucket(bucket_name)
        schedule, held = role._schedule, role.ownership.held["s"]
        assert schedule is not None
        await schedule._verify(held)  # it was LIVE when it was due
        (entry,) = [vars(one)["fields"] for one in caplog.records if one.getMessage() == "source drifted"]
        assert str(entry["repair"]).startswith("s is STREAM_RECREATED: ")
    assert await is_not_requested(sources)
    assert len(await sources.fold("t")) == 3


async def test_drift_of_a_live_source_is_repaired_as_before(sources: SourceKit, bucket_name: str) -> None:
    await copied(sources, bucket_name)
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        corrupt_row(sources.link, "t", b"k1", b"x")
        result = await repaired(sources, role)
        assert result.repaired
        assert result.report.state == "LIVE"


async def test_lag_of_a_source_whose_bucket_was_recreated_is_all_of_the_new_one(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.ingest.sources.source_run.RETRY_S_MAX", 0.1)
    await copied(sources, bucket_name, 5)
    async with sources.ingest(audit_interval_s=0.05) as role:
        await sources.is_state("s", "LIVE")
        await sources.js.delete_key_value(bucket_name)
        bucket = await sources.make_bucket(bucket_name)
        for number in range(2):
            await bucket.put(f"k{number}", b"new")
        await sources.is_state("s", "STREAM_RECREATED")
        progress = role.ownership.held["s"].progress
        await sources.until(lambda: progress.lag == 2)
        await bucket.put("k2", b"new")
        await sources.until(lambda: progress.lag == 3)
        assert progress.lag_s > 0

        async def is_told() -> bool:
            seen = source_to_pb(await sources.link.get_source("s"))
            return (seen.position_revision, seen.last_revision, seen.lag) == (5, 3, 3)

        await sources.until(is_told)
        # How far the old one was stays known: a resync tells it as lost.
        assert (await sources.link.get_source("s")).report.last_revision == 5
        role.ownership.apply_control(await sources.link.control_source("s", resync=True))
        await sources.is_state("s", "LIVE")
        await sources.until(lambda: progress.lag == 0)
        seen = source_to_pb(role.ownership.current(await sources.link.get_source("s")))
        assert (seen.position_revision, seen.last_revision, seen.lag) == (3, 3, 0)


async def test_bucket_created_after_its_source_and_a_recreated_one_have_one_warning_each(
    sources: SourceKit, bucket_name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.ingest.sources.source_run.RETRY_S_MAX", 0.1)
    caplog.set_level(logging.WARNING)

    def warned() -> int:
        return sum(one.getMessage() == "source may miss revisions" for one in caplog.records)

    await sources.define(SourceDefinition("s", "t", bucket_name, on_recreated="RESYNC"))
    async with sources.ingest() as role:
        await sources.is_state("s", "SOURCE_LOST")
        bucket = await sources.make_bucket(bucket_name, history=1)
        await sources.reaches("s", await bucket.put("a", b"1"))
        await sources.is_state("s", "LIVE")
        assert warned() == 1
        role.ownership.apply_control(await sources.link.control_source("s", resync=True))
        await sources.until(lambda: role.ownership.held["s"].progress.counts.resyncs == 1)
        await sources.is_state("s", "LIVE")
        assert warned() == 1, "another attempt at the same stream"
        await sources.js.delete_key_value(bucket_name)
        bucket = await sources.make_bucket(bucket_name, history=2)
        await bucket.put("b", b"1")
        await sources.until(lambda: warned() == 2)


async def test_bucket_that_is_edited_to_lose_messages_is_warned_of_each_time(
    sources: SourceKit, bucket_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    def warned() -> list[str]:
        log_fields = [vars(one)["fields"] for one in caplog.records if one.getMessage() == "source may miss revisions"]
        return [str(one["reason"]) for one in log_fields]

    async def edit(**changes: object) -> None:
        config = (await sources.js.stream_info(f"KV_{bucket_name}")).config
        await sources.js.update_stream(config.evolve(**changes))

    bucket = await sources.make_copied_bucket(bucket_name)
    async with sources.ingest(audit_interval_s=0.05) as role:
        await sources.reaches("s", await bucket.put("a", b"1"))
        await sources.is_state("s", "LIVE")
        progress = role.ownership.held["s"].progress
        assert warned() == []
        await edit(max_age=3_600)  # while it is LIVE
        await sources.until(lambda: len(warned()) == 1)
        assert warned()[0] == "messages expire without markers"
        await sources.is_state("s", "LIVE")
        role.ownership.apply_control(await sources.link.control_source("s", paused=True))
        await sources.is_state("s", "PAUSED")
        await edit(max_msgs=9, discard="old")  # while it is paused
        await sources.until(lambda: len(warned()) == 2)
        assert len(progress.loss_warnings) == 2
        role.ownership.apply_control(await sources.link.control_source("s", paused=False))
        await sources.is_state("s", "LIVE")
        await edit(max_age=0, max_msgs=-1)
        await sources.until(lambda: progress.loss_warnings == ())
        await edit(max_age=3_600)
        await sources.until(lambda: len(warned()) == 3)
        await sources.is_state("s", "LIVE")
        role.ownership.apply_control(await sources.link.control_source("s", resync=True))
        await sources.until(lambda: progress.counts.resyncs >= 1)
        await sources.is_state("s", "LIVE")
    assert len(warned()) == 3
