"""Resume from the stored position: comparisons, reported losses, stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nats.js.api import DiscardPolicy

from eddyline.core.records.record import GapReason, Op
from eddyline.ingest.copy.position import StreamPosition, decode_position

if TYPE_CHECKING:
    import pytest
    from nats.js.api import StreamConfig

    from eddyline.core.records.batch import Batch
    from eddyline.core.store_link.protocol import AppendResult
    from tests.support.ingest.kit import BucketKit


async def configure(kit: BucketKit, **changes: object) -> None:
    """Change the bucket's stream."""
    config: StreamConfig = (await kit.js.stream_info(f"KV_{kit.bucket}")).config
    await kit.js.update_stream(config.evolve(**changes))


async def copied(kit: BucketKit, revision: int) -> None:
    """Copy up to `revision`, then stop."""
    async with kit.ingest():
        await kit.reaches(revision)
        await kit.is_state("LIVE")


async def is_fold(kit: BucketKit, keys: set[str]) -> bool:
    """True = these keys are live, and no others."""
    return set(await kit.fold()) == keys


async def gap_ranges(kit: BucketKit) -> list[tuple[int, int, int]]:
    """First and last lost revision, and the reason, of each gap."""
    return [(gap.source_first, gap.source_last, gap.reason) for gap in await kit.gaps()]


async def test_restart_goes_on_where_it_stopped_without_loss_or_repeat(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    await copied(kit, await bucket.put("a", b"1"))
    await bucket.put("b", b"2")
    last = await bucket.put("a", b"3")
    await copied(kit, last)
    assert [record.data for record in await kit.records()] == [b"1", b"2", b"3"]


async def test_restart_of_a_level_source_writes_nothing(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    await copied(kit, await bucket.put("a", b"1"))
    position = (await kit.source()).position
    async with kit.ingest():
        await kit.is_state("LIVE")
    assert (await kit.source()).position == position
    assert len(await kit.records()) == 1


async def test_apply_that_fails_leaves_the_position_and_a_restart_applies_it_once(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest():
        for number in range(1, 7):
            last = await bucket.put("k", b"%d" % number)
        await kit.reaches(last)
        kit.link.away = True
        last = await bucket.put("k", b"7")
        await kit.until(lambda: kit.link.failed_count > 0)
    assert await kit.revision() == 6
    kit.link.away = False
    await copied(kit, last)
    assert [record.data for record in await kit.records()] == [b"%d" % number for number in range(1, 8)]


async def test_message_that_comes_back_below_the_position_stays_deleted(kit: BucketKit) -> None:
    # Without deny_delete, so that a marker can be lost as a server's crash may lose it.
    await kit.js.add_stream(
        name=f"KV_{kit.bucket}", subjects=[f"$KV.{kit.bucket}.>"], max_msgs_per_subject=5, discard=DiscardPolicy.NEW
    )
    bucket = await kit.js.key_value(kit.bucket)
    await kit.make_source()
    await bucket.put("k", b"1")
    await bucket.delete("k")
    await copied(kit, 2)
    await kit.js.delete_msg(f"KV_{kit.bucket}", 2)
    assert (await bucket.get("k")).value == b"1"
    await copied(kit, await bucket.put("other", b"2"))
    assert await kit.fold() == {"other": b"2"}


async def test_superseded_revisions_of_a_long_history_are_silent_holes(kit: BucketKit) -> None:
    bucket = await kit.make_bucket(history=64)
    await bucket.put("other", b"0")
    for number in range(100):
        await bucket.put("a", b"%d" % number)
    await kit.make_source()
    await copied(kit, 101)
    assert [record.data for record in await kit.records()] == [b"0", *(b"%d" % number for number in range(36, 100))]
    assert await kit.gaps() == []


async def test_first_start_behind_lost_revisions_begins_with_a_gap(kit: BucketKit) -> None:
    bucket = await kit.make_bucket(history=1)
    await configure(kit, allow_msg_ttl=True)
    for number in range(5):
        await bucket.put("a", b"%d" % number)
    await kit.make_source()
    await copied(kit, 5)
    assert await gap_ranges(kit) == [(1, 4, GapReason.SOURCE_GAP)]
    assert await kit.ops() == [(Op.GAP, None), (Op.PUT, b"a")]


async def test_where_the_stream_cannot_evict_the_lost_revisions_were_superseded(kit: BucketKit) -> None:
    await kit.js.add_stream(
        name=f"KV_{kit.bucket}",
        subjects=[f"$KV.{kit.bucket}.>"],
        max_msgs_per_subject=1,
        discard=DiscardPolicy.NEW,
        allow_rollup_hdrs=True,
        allow_direct=True,
    )
    bucket = await kit.js.key_value(kit.bucket)
    await kit.make_source()
    await copied(kit, await bucket.put("a", b"1"))
    for number in range(4):
        await bucket.put("a", b"%d" % number)
    await copied(kit, 5)
    assert await gap_ranges(kit) == [(2, 4, GapReason.SUPERSEDED)]
    assert await kit.fold() == {"a": b"3"}


async def test_key_purged_without_a_marker_gets_a_synthetic_delete(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    await bucket.put("kept", b"1")
    await copied(kit, await bucket.put("gone", b"2"))
    await kit.js.purge_stream(f"KV_{kit.bucket}", subject=f"$KV.{kit.bucket}.gone")
    last = await bucket.put("new", b"3")
    await copied(kit, last)
    assert (await kit.ops())[2:] == [(Op.DELETE, b"gone"), (Op.PUT, b"new")]
    assert await kit.gaps() == []
    assert await kit.fold() == {"kept": b"1", "new": b"3"}


async def test_marker_that_was_itself_removed_still_deletes_the_key(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    await bucket.put("kept", b"1")
    await copied(kit, await bucket.put("gone", b"2"))
    await bucket.delete("gone")
    await bucket.purge_deletes(olderthan=-1)
    async with kit.ingest():
        await kit.until(lambda: is_fold(kit, {"kept"}))
        await kit.reaches(3)  # nothing is left there: the position moves alone
        await kit.is_state("LIVE")
    assert (await kit.source()).report.lag == 0


async def test_many_vanished_keys_go_in_several_batches(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    await bucket.put("kept", b"1")
    for number in range(2_200):
        await kit.client.publish(f"$KV.{kit.bucket}.gone.{number}", b"x")
    await kit.client.flush()
    await copied(kit, 2_201)
    await kit.js.purge_stream(f"KV_{kit.bucket}", subject=f"$KV.{kit.bucket}.gone.>")
    await copied(kit, await bucket.put("new", b"2"))
    assert await kit.fold() == {"kept": b"1", "new": b"2"}
    assert kit.link.batch_sizes[-4:] == [1_000, 1_000, 200, 1]


async def test_purge_of_everything_is_a_gap_and_deletes_what_is_gone(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    await bucket.put("a", b"1")
    await copied(kit, await bucket.put("b", b"2"))
    for number in range(3):
        await bucket.put("a", b"%d" % number)
    await kit.js.purge_stream(f"KV_{kit.bucket}")
    await copied(kit, 5)
    assert (await kit.ops())[2:] == [(Op.GAP, None), (Op.DELETE, b"a"), (Op.DELETE, b"b")]
    assert await gap_ranges(kit) == [(3, 5, GapReason.SOURCE_GAP)]
    assert await kit.fold() == {}


async def test_resync_cut_off_in_the_middle_starts_over_and_moves_with_its_last_batch(
    kit: BucketKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await kit.make_copied_bucket()
    for number in range(1_500):
        await kit.client.publish(f"$KV.{kit.bucket}.gone.{number}", b"x")
    await kit.client.flush()
    await copied(kit, 1_500)
    await bucket.put("lost", b"1")
    await kit.js.purge_stream(f"KV_{kit.bucket}")
    last = await bucket.put("new", b"2")
    apply_batch = kit.link.apply_batch

    async def once(
        source: str, *, fence: int, previous: bytes, new: bytes, batch: Batch | None, traceparent: str
    ) -> AppendResult:
        result = await apply_batch(source, fence=fence, previous=previous, new=new, batch=batch)
        kit.link.away = True
        return result

    with monkeypatch.context() as patch:
        patch.setattr(kit.link, "apply_batch", once)
        async with kit.ingest():
            await kit.until(lambda: kit.link.away)
    kit.link.away = False
    assert await kit.revision() == 1_500
    assert len(await kit.fold()) == 501
    await copied(kit, last)
    assert await gap_ranges(kit) == [(1_501, 1_501, GapReason.SOURCE_GAP)] * 2
    assert await kit.fold() == {"new": b"2"}


async def test_revisions_evicted_by_limits_are_a_source_gap(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    await copied(kit, await bucket.put("a", b"1"))
    await configure(kit, discard=DiscardPolicy.OLD, max_msgs=3)
    for number in range(8):
        await bucket.put(f"k{number}", b"x")
    await copied(kit, 9)
    assert await gap_ranges(kit) == [(2, 6, GapReason.SOURCE_GAP)]
    assert await kit.fold() == {"k5": b"x", "k6": b"x", "k7": b"x"}


async def test_live_overrun_is_a_source_gap_in_its_place_and_compares_keys(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    await configure(kit, discard=DiscardPolicy.OLD, max_msgs=3)
    await kit.make_source()
    async with kit.ingest():
        await kit.reaches(await bucket.put("a", b"1"))
        await kit.is_state("LIVE")
        # Nothing is taken while the store waits: the pulls that are out fill, then the limit passes the reader.
        kit.link.applies_open.clear()
        for number in range(6_000):
            await kit.client.publish(f"$KV.{kit.bucket}.k{number}", b"x")
        await kit.client.flush()
        await kit.js.stream_info(f"KV_{kit.bucket}")
        kit.link.applies_open.set()
        await kit.reaches(6_001)
        await kit.until(lambda: is_fold(kit, {"k5997", "k5998", "k5999"}))
    ranges = await gap_ranges(kit)
    assert ranges
    assert {reason for _, _, reason in ranges} == {GapReason.SOURCE_GAP}
    gap_revisions = {revision for first, last, _ in ranges for revision in range(first, last + 1)}
    read = {int.from_bytes(record.version, "big") for record in await kit.records() if record.op == Op.PUT}
    assert gap_revisions | read == set(range(1, 6_002))
    assert not gap_revisions & read


async def test_hot_key_of_a_bucket_with_time_to_live_makes_no_gaps(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket(history=1, ttl=3_600)
    async with kit.ingest():
        await kit.reaches(await bucket.put("hot", b"0"))
        kit.link.applies_open.clear()
        for _ in range(6_000):
            await kit.client.publish(f"$KV.{kit.bucket}.hot", b"x")
        await kit.client.flush()
        await kit.js.stream_info(f"KV_{kit.bucket}")
        kit.link.applies_open.set()
        await kit.reaches(6_001)
    assert await kit.gaps() == []


async def test_every_hole_of_a_stream_without_a_limit_of_each_subject_is_a_gap(kit: BucketKit) -> None:
    await kit.js.add_stream(name=f"KV_{kit.bucket}", subjects=[f"$KV.{kit.bucket}.>"], allow_rollup_hdrs=True)
    for number in range(6):
        await kit.js.publish(f"$KV.{kit.bucket}.k{number}", b"x")
    for revision in (3, 4):
        await kit.js.delete_msg(f"KV_{kit.bucket}", revision)
    await kit.make_source()
    await copied(kit, 6)
    assert await gap_ranges(kit) == [(3, 4, GapReason.SOURCE_GAP)]
    assert [op for op, _ in await kit.ops()] == [Op.PUT, Op.PUT, Op.GAP, Op.PUT, Op.PUT]


async def test_recreated_stream_stops_the_source_and_keeps_the_fold(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    await copied(kit, await bucket.put("a", b"1"))
    await kit.js.delete_key_value(kit.bucket)
    bucket = await kit.make_bucket()
    for _ in range(5):
        await bucket.put("b", b"2")
    async with kit.ingest():
        await kit.is_state("STREAM_RECREATED")
    assert await kit.fold() == {"a": b"1"}


async def test_missing_bucket_is_waited_for(kit: BucketKit) -> None:
    await kit.make_source()
    async with kit.ingest():
        await kit.is_state("SOURCE_LOST")
        bucket = await kit.make_bucket()
        await kit.reaches(await bucket.put("a", b"1"))
        await kit.is_state("LIVE")
    assert [state for state in kit.states() if state not in ("CONNECTING", "RESYNCING")] == ["SOURCE_LOST", "LIVE"]


async def test_bucket_deleted_while_copying_keeps_the_fold_and_stops_the_source(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest():
        await kit.reaches(await bucket.put("a", b"1"))
        await kit.js.delete_key_value(kit.bucket)
        await kit.is_state("SOURCE_LOST")
    assert await kit.fold() == {"a": b"1"}


async def test_position_ahead_of_the_stream_stops_the_source(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    await bucket.put("a", b"1")
    await copied(kit, await bucket.put("b", b"2"))
    position = decode_position((await kit.source()).position)
    assert position is not None
    await kit.move(StreamPosition(position.created_ns, 9, position.sample).encode())
    async with kit.ingest():
        await kit.is_state("CURSOR_AHEAD")
    assert "last revision is 2" in (await kit.source()).report.reason
    await kit.move(StreamPosition(position.created_ns, 1, position.sample).encode())
    async with kit.ingest(holder="two"):
        await kit.is_state("CURSOR_AHEAD")
    assert "not the message" in (await kit.source()).report.reason
    assert await kit.fold() == {"a": b"1", "b": b"2"}
