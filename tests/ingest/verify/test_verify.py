"""Verification of a source: drift reported exactly, repaired on request, and none reported while a writer runs."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import BucketNotFound, NotKv, Throttled
from eddyline.core.model.source import SourceDefinition
from eddyline.ingest.verify.compare import Difference, DifferenceKind, PrefixDrift, VerifyProgress, VerifyStage
from eddyline.ingest.verify.verify import VerifyOptions, VerifyResult
from tests.support.ingest.fold_tampering import corrupt_row, drift

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

    from eddyline.ingest.role import IngestRole
    from tests.support.ingest.kit import SourceKit

SETTLE_S = 0.2


async def copied(sources: SourceKit, bucket_name: str, values: dict[str, bytes], **definition: object) -> KeyValue:
    """Make a bucket of these values, copied by a source `s` without a holder."""
    bucket = await sources.make_bucket(bucket_name)
    await sources.define(SourceDefinition("s", "t", bucket_name, **definition))  # type: ignore[arg-type]
    last = 0
    for key, value in values.items():
        last = await bucket.put(key, value)
    async with sources.ingest():
        await sources.reaches("s", last)
    return bucket


async def steps_of(
    sources: SourceKit, role: IngestRole, *, repair: bool = False, limit: int = 100, settle_s: float = SETTLE_S
) -> tuple[list[VerifyProgress], VerifyResult]:
    """Everything that a verification of `s` yields."""
    await role.connection.wait_connected()
    definition = (await sources.link.get_source("s")).definition
    order = VerifyOptions(role.new_compare_name(), settle_s, limit, repair)
    steps = [step async for step in role.verifier.steps(definition, order)]
    progress = [step for step in steps if isinstance(step, VerifyProgress)]
    result = steps[-1]
    assert isinstance(result, VerifyResult)
    assert len(progress) == len(steps) - 1
    return progress, result


async def verify_source(
    sources: SourceKit, role: IngestRole, *, repair: bool = False, limit: int = 100, settle_s: float = SETTLE_S
) -> VerifyResult:
    """Verify `s`."""
    return (await steps_of(sources, role, repair=repair, limit=limit, settle_s=settle_s))[1]


async def nothing_is_left(sources: SourceKit, bucket_name: str) -> None:
    """Check that no consumer but the source's, and no scan, is left."""

    async def is_so() -> bool:
        names = [info.name for info in await sources.js.consumers_info(f"KV_{bucket_name}")]
        return not [name for name in names if "compare" in name]

    # Where the answer to its deletion is late the server removes it by itself, 30 s after the last pull.
    await sources.until(is_so, seconds=60)
    assert not sources.link._engine.fold._views  # type: ignore[attr-defined]


async def test_equal_sides_compare_equal_and_leave_no_consumer_or_scan(sources: SourceKit, bucket_name: str) -> None:
    bucket = await copied(sources, bucket_name, {f"a.k{number}": b"%d" % number for number in range(50)})
    async with sources.ingest() as role:
        await bucket.delete("a.k0")
        last = await bucket.put("empty", b"")
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
        for _ in range(10):
            progress, result = await steps_of(sources, role)
        comparison = result.comparison
        assert (comparison.bucket_count, comparison.fold_count, comparison.difference_count) == (50, 50, 0)
        assert (comparison.position_revision, comparison.prefixes, comparison.unsettled_count) == (last, (), 0)
        assert not result.repaired
        assert [step.stage for step in progress] == [VerifyStage.COUNTS, VerifyStage.HASHES]
        await nothing_is_left(sources, bucket_name)
        assert (role.verifier.verification_count, role.verifier.drifted_key_count) == (10, 0)


async def test_missing_surplus_and_differing_keys_are_reported_exactly_and_repaired(
    sources: SourceKit, bucket_name: str
) -> None:
    values = {f"{prefix}.k{number}": b"1" for prefix in ("a", "b", "c") for number in range(30)}
    bucket = await copied(sources, bucket_name, {**values, "a.gone": b"1", "plain": b"1"})
    async with sources.ingest():
        await bucket.delete("a.gone")
        await sources.reaches("s", await bucket.put("plain", b"2"))
    await drift(sources.link, "s", {"a.k1": None, "a.gone": b"x", "b.k2": b"other", "plain": b"1"})
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        comparison = (await verify_source(sources, role)).comparison
        limited = await verify_source(sources, role, limit=1, repair=True)
        assert await sources.fold("t") == {**{key.encode(): b"1" for key in values}, b"plain": b"2"}
        after = await verify_source(sources, role)
        assert (role.verifier.verification_count, role.verifier.drifted_key_count) == (3, 8)
        assert role.ownership.held["s"].progress.drift_count == 0
    revision = {key: number + 1 for number, key in enumerate(values)}
    assert comparison.differences == (
        Difference(b"a.gone", DifferenceKind.SURPLUS, 0, 1),
        Difference(b"a.k1", DifferenceKind.MISSING, revision["a.k1"], 0),
        Difference(b"b.k2", DifferenceKind.VALUE, revision["b.k2"], 1),
        Difference(b"plain", DifferenceKind.VALUE, len(values) + 4, 1),
    )
    assert (comparison.bucket_count, comparison.fold_count, comparison.difference_count) == (91, 91, 4)
    assert comparison.prefixes == (
        PrefixDrift(b"", 1, 1, 1),
        PrefixDrift(b"a.", 30, 30, 2),
        PrefixDrift(b"b.", 30, 30, 1),
    )
    assert limited.comparison.differences == comparison.differences[:1]
    assert limited.repaired
    assert limited.left is not None
    assert (limited.comparison.difference_count, limited.left_count, limited.trouble) == (4, 0, "")
    assert after.comparison.is_right


@pytest.mark.parametrize("data", [None, b"rotten"])
async def test_one_corrupt_row_of_the_fold_is_reported_repaired_and_counted(
    sources: SourceKit, bucket_name: str, data: bytes | None
) -> None:
    await copied(sources, bucket_name, {f"k{number}": b"%d" % number for number in range(300)})
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        assert (await verify_source(sources, role)).comparison.is_right
        corrupt_row(sources.link, "t", b"k77", data)
        result = await verify_source(sources, role, repair=True)
        assert [one.key for one in result.comparison.differences] == [b"k77"]
        assert result.repaired
        assert (await sources.fold("t"))[b"k77"] == b"77"
        assert (role.verifier.verification_count, role.verifier.drifted_key_count) == (2, 1)


async def test_another_replica_verifies_and_the_holder_repairs(sources: SourceKit, bucket_name: str) -> None:
    await copied(sources, bucket_name, {"a": b"1", "b": b"2"})
    async with sources.ingest(holder="holder"):
        await sources.is_state("s", "LIVE")
        async with sources.ingest(holder="other") as other:
            corrupt_row(sources.link, "t", b"b", b"x")
            assert (await verify_source(sources, other, repair=True)).repaired
            assert "s" not in other.ownership.held


async def test_repair_of_a_paused_source_is_requested_and_reported_as_not_done(
    sources: SourceKit, bucket_name: str
) -> None:
    await copied(sources, bucket_name, {"a": b"1"})
    await sources.link.control_source("s", paused=True)
    async with sources.ingest() as role:
        await sources.is_state("s", "PAUSED")
        corrupt_row(sources.link, "t", b"a", b"x")
        result = await verify_source(sources, role, repair=True)
        assert (result.repaired, result.left, result.left_count) == (False, None, 1)
        assert "paused" in result.trouble
        await sources.link.control_source("s", paused=False)
        await sources.is_state("s", "LIVE")
        assert (await verify_source(sources, role)).comparison.is_right


async def test_repair_without_a_holder_ends_with_the_reason(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.ingest.verify.verify.REPAIR_S_MAX", 0.5)
    await copied(sources, bucket_name, {"a": b"1"})
    corrupt_row(sources.link, "t", b"a", b"x")
    await sources.link.acquire_lease("s", holder="nobody", lease_ms=60_000)
    async with sources.ingest() as role:
        result = await verify_source(sources, role, repair=True)
    assert (result.repaired, result.left, result.left_count) == (False, None, 1)
    assert result.trouble.startswith("the resync did not finish within 0.5 s")
    assert (await sources.link.get_source("s")).control.resync_serial == 1


@pytest.mark.parametrize("history", [1, 8])
async def test_writer_at_full_speed_is_no_drift(sources: SourceKit, bucket_name: str, history: int) -> None:
    bucket = await sources.make_copied_bucket(bucket_name, history=history)
    for number in range(200):
        await bucket.put(f"k{number}", b"0")
    stop = asyncio.Event()

    async def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            key = f"$KV.{bucket_name}.k{number % 7 if number % 2 else number % 200}"
            await sources.client.publish(key, b"%d" % number)
            if number % 50 == 0:
                await sources.client.flush()

    async with sources.ingest() as role, asyncio.TaskGroup() as group:
        await sources.is_state("s", "LIVE")
        group.create_task(write())
        try:
            for _ in range(3):
                result = await verify_source(sources, role, settle_s=0.5)
                assert result.comparison.difference_count == 0, result.comparison.differences
            corrupt_row(sources.link, "t", b"surplus", b"x")
            comparison = (await verify_source(sources, role, settle_s=0.5)).comparison
            assert [one.key for one in comparison.differences] == [b"surplus"]
        finally:
            stop.set()


async def test_only_what_the_source_copies_is_compared(sources: SourceKit, bucket_name: str) -> None:
    values = {"in.a": b"1", "in.b": b"1", "out.a": b"1", "also": b"1"}
    filters = {"key_prefixes": (b"in.",), "subjects": ("also",)}
    await copied(sources, bucket_name, values, **filters)
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        comparison = (await verify_source(sources, role)).comparison
        assert (comparison.bucket_count, comparison.fold_count, comparison.difference_count) == (3, 3, 0)
        corrupt_row(sources.link, "t", b"out.a", b"1")  # the bucket has it, but it is not copied
        comparison = (await verify_source(sources, role)).comparison
        assert comparison.differences == (Difference(b"out.a", DifferenceKind.SURPLUS, 0, 1),)


async def test_empty_bucket_and_empty_fold_are_equal(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        comparison = (await verify_source(sources, role)).comparison
        assert (comparison.bucket_count, comparison.fold_count, comparison.difference_count) == (0, 0, 0)
        await bucket.put("a", b"1")
        await sources.reaches("s", await bucket.delete("a") and 2)
        assert (await verify_source(sources, role)).comparison.is_right


async def test_key_that_left_without_a_message_gets_time_to_settle(sources: SourceKit, bucket_name: str) -> None:
    await copied(sources, bucket_name, {"a": b"1", "b": b"1"})
    async with sources.ingest(audit_interval_s=0.5) as role:
        await sources.is_state("s", "LIVE")
        await sources.js.purge_stream(f"KV_{bucket_name}", subject=f"$KV.{bucket_name}.a")
        assert (await verify_source(sources, role, settle_s=20.0)).comparison.is_right
        assert await sources.fold("t") == {b"b": b"1"}


async def test_key_that_the_api_cannot_name_is_compared_and_mended(sources: SourceKit, bucket_name: str) -> None:
    bucket = await copied(sources, bucket_name, {"a": b"1"})
    await sources.client._send_command(b"PUB $KV.%b.\xff\xfe 1\r\n1\r\n" % bucket_name.encode())
    await sources.client.flush()
    async with sources.ingest() as role:
        await sources.reaches("s", await bucket.put("a", b"2"))
        await sources.is_state("s", "LIVE")
        assert (await verify_source(sources, role)).comparison.is_right
        corrupt_row(sources.link, "t", b"\xff\xfe", b"x")
        result = await verify_source(sources, role, repair=True)
        assert result.comparison.differences == (Difference(b"\xff\xfe", DifferenceKind.VALUE, 2, 1),)
        assert result.repaired


async def test_missing_bucket_and_a_stream_are_refused(sources: SourceKit, bucket_name: str) -> None:
    await copied(sources, bucket_name, {"a": b"1"})
    await sources.js.delete_key_value(bucket_name)
    async with sources.ingest() as role:
        with pytest.raises(BucketNotFound):
            await verify_source(sources, role)
        with pytest.raises(NotKv):
            order = VerifyOptions("x", SETTLE_S, 1)
            await role.verifier.verify(SourceDefinition("of-stream", "log", stream=bucket_name), order)
        assert role.verifier.verification_count == 0


async def test_recreated_bucket_with_equal_values_is_equal(sources: SourceKit, bucket_name: str) -> None:
    await copied(sources, bucket_name, {"a": b"1", "b": b"2", "c": b"3"})
    await sources.js.delete_key_value(bucket_name)
    bucket = await sources.make_bucket(bucket_name)
    for key, value in (("c", b"3"), ("b", b"2"), ("a", b"1")):
        await bucket.put(key, value)
    async with sources.ingest() as role:
        await sources.is_state("s", "STREAM_RECREATED")
        assert (await verify_source(sources, role)).comparison.is_right


async def test_source_that_stands_still_is_reported_as_it_is(sources: SourceKit, bucket_name: str) -> None:
    bucket = await copied(sources, bucket_name, {"a": b"1"})
    await sources.link.control_source("s", paused=True)
    await bucket.put("a", b"2")
    async with sources.ingest() as role:
        await sources.is_state("s", "PAUSED")
        comparison = (await verify_source(sources, role)).comparison
        assert comparison.differences == (Difference(b"a", DifferenceKind.VALUE, 2, 1),)
        assert comparison.unsettled_count == 0


async def test_dead_letters_are_distinguished_and_are_no_drift(
    sources: SourceKit, bucket_name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.ingest.verify.schedule.SETTLE_S", SETTLE_S)
    caplog.set_level(logging.INFO)
    bucket = await copied(sources, bucket_name, {"a": b"1", "b": b"1", "p.c": b"1"}, dead_letter_topic="letters")
    headers = {f"H{number}": "x" for number in range(100)}  # more than a record has
    for key in ("a", "p.new"):
        await sources.js.publish(f"$KV.{bucket_name}.{key}", b"misfit", headers=headers)
    long = "l" * 1100
    await sources.js.publish(f"$KV.{bucket_name}.{long}", b"misfit")
    last = await bucket.put("b", b"2")
    async with sources.ingest() as role:
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
        result = await verify_source(sources, role, repair=True)
        comparison = result.comparison
        assert comparison.differences == (
            Difference(b"a", DifferenceKind.DEAD_LETTER, 4, 1),
            Difference(long.encode(), DifferenceKind.DEAD_LETTER, 6, 0),
            Difference(b"p.new", DifferenceKind.DEAD_LETTER, 5, 0),
        )
        assert (comparison.is_right, comparison.difference_count, comparison.dead_letter_count) == (True, 0, 3)
        assert (comparison.bucket_count, comparison.fold_count, comparison.prefixes) == (5, 3, ())
        assert (result.trouble, result.left_count) == ("", 0)
        assert (await sources.link.get_source("s")).control.resync_serial == 0, "there was nothing to repair"
        schedule = role._schedule
        assert schedule is not None
        await schedule._verify(role.ownership.held["s"])
        assert [one.levelname for one in caplog.records if one.getMessage() == "source verified"] == ["INFO"]
        corrupt_row(sources.link, "t", b"p.c", b"x")
        comparison = (await verify_source(sources, role)).comparison
        assert [one.kind for one in comparison.differences] == [DifferenceKind.VALUE, *[DifferenceKind.DEAD_LETTER] * 3]
        assert comparison.prefixes == (PrefixDrift(b"p.", 2, 1, 1),)
        comparison = (await verify_source(sources, role, limit=1)).comparison
        assert [one.kind for one in comparison.differences] == [DifferenceKind.VALUE]
        caplog.clear()
        await schedule._verify(role.ownership.held["s"])
        (entry,) = [vars(one)["fields"] for one in caplog.records if one.getMessage() == "source drifted"]
        assert (entry["keys"], entry["differences"], entry["dead_letters"]) == ("p.c", 1, 3)
        result = await verify_source(sources, role, repair=True)
        assert result.repaired
        await bucket.put("a", b"3")  # it fits again
        assert (await verify_source(sources, role)).comparison.dead_letter_count == 2


async def test_misfit_that_the_source_has_not_met_is_a_difference(sources: SourceKit, bucket_name: str) -> None:
    await copied(sources, bucket_name, {"a": b"1"}, dead_letter_topic="letters")
    await sources.link.control_source("s", paused=True)
    headers = {f"H{number}": "x" for number in range(100)}
    await sources.js.publish(f"$KV.{bucket_name}.a", b"misfit", headers=headers)
    async with sources.ingest() as role:
        await sources.is_state("s", "PAUSED")
        comparison = (await verify_source(sources, role)).comparison
        assert comparison.differences == (Difference(b"a", DifferenceKind.VALUE, 2, 1),)
        assert comparison.dead_letter_count == 0


@pytest.mark.parametrize("stage", [VerifyStage.COUNTS, VerifyStage.HASHES, VerifyStage.KEYS])
async def test_cancelled_verification_leaves_no_consumer_and_no_scan(
    sources: SourceKit, bucket_name: str, stage: VerifyStage
) -> None:
    await copied(sources, bucket_name, {f"k{number}": b"1" for number in range(300)})
    await drift(sources.link, "s", {f"k{number}": b"2" for number in range(300)})
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        definition = (await sources.link.get_source("s")).definition
        reached = asyncio.Event()

        async def verify() -> None:
            order = VerifyOptions(role.new_compare_name(), 60.0, 1)
            async with aclosing(role.verifier.steps(definition, order)) as steps:
                async for step in steps:
                    if isinstance(step, VerifyProgress) and step.stage == stage:
                        reached.set()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(verify())
            await reached.wait()
            task.cancel()
        await nothing_is_left(sources, bucket_name)
        assert (await verify_source(sources, role)).comparison.difference_count == 300


async def test_one_verification_at_a_time_and_so_many_wait(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.ingest.verify.compare.WAITING_MAX", 2)
    await copied(sources, bucket_name, {"a": b"1"})
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        await drift_now(sources)
        refused = 0

        async def verify() -> None:
            nonlocal refused
            try:
                await verify_source(sources, role)
            except Throttled:
                refused += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(verify())
        assert (refused, role.verifier.verification_count) == (2, 3)


async def drift_now(sources: SourceKit) -> None:
    """Let a comparison last exactly as long as its time to settle."""
    corrupt_row(sources.link, "t", b"a", b"x")


async def test_many_differences_are_held_in_key_groups_and_the_rest_is_counted(
    sources: SourceKit, bucket_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await copied(sources, bucket_name, {f"k{number:03}": b"1" for number in range(100)})
    await drift(sources.link, "s", {f"k{number:03}": b"2" for number in range(100)})
    monkeypatch.setattr("eddyline.ingest.verify.compare.KEYS_HELD_MAX", 20)
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        comparison = (await verify_source(sources, role)).comparison
        assert (comparison.difference_count, comparison.unconfirmed_count, comparison.unexamined_count) == (100, 0, 0)
        assert [one.key for one in comparison.differences] == [b"k%03d" % number for number in range(100)]
        monkeypatch.setattr("eddyline.ingest.verify.compare.CANDIDATES_MAX", 30)
        comparison = (await verify_source(sources, role)).comparison
        assert (comparison.difference_count, comparison.unconfirmed_count, len(comparison.differences)) == (100, 70, 30)
        monkeypatch.setattr("eddyline.ingest.verify.compare.ROUNDS_MAX", 2)
        comparison = (await verify_source(sources, role)).comparison
        assert (comparison.difference_count, comparison.unexamined_count) == (40, 60)
        assert (comparison.bucket_count, comparison.fold_count) == (100, 100)
        assert not comparison.is_right
