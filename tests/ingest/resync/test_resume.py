"""Resume from the stored position: comparisons, reported losses, stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nats.js.api import DiscardPolicy

from eddyline.core.records.record import GapReason, Op
from eddyline.ingest.copy.position import Position, decode_position

if TYPE_CHECKING:
    import pytest
    from nats.js.api import StreamConfig

    from eddyline.core.records.batch import Batch
    from eddyline.core.store_link.protocol import AppendResult
    from tests.support.ingest.buckets import Kit


async def configure(at: Kit, **changes: object) -> None:
    """Change the bucket's stream."""
    config: StreamConfig = (await at.js.stream_info(f"KV_{at.bucket}")).config
    await at.js.update_stream(config.evolve(**changes))


async def copied(at: Kit, revision: int) -> None:
    """Copy up to `revision`, then stop."""
    async with at.ingest():
        await at.reaches(revision)
        await at.is_state("LIVE")


async def is_fold(at: Kit, keys: set[str]) -> bool:
    """True = these keys are live, and no others."""
    return set(await at.fold()) == keys


async def gap_ranges(at: Kit) -> list[tuple[int, int, int]]:
    """First and last lost revision, and the reason, of each gap."""
    return [(gap.source_first, gap.source_last, gap.reason) for gap in await at.gaps()]


async def test_restart_goes_on_where_it_stopped_without_loss_or_repeat(at: Kit) -> None:
    bucket = await at.make_bucket()
    await at.make_source()
    await copied(at, await bucket.put("a", b"1"))
    await bucket.put("b", b"2")
    last = await bucket.put("a", b"3")
    await copied(at, last)
    assert [record.data for record in await at.records()] == [b"1", b"2", b"3"]


async def test_restart_of_a_level_source_writes_nothing(at: Kit) -> None:
    bucket = await at.make_bucket()
    await at.make_source()
    await copied(at, await bucket.put("a", b"1"))
    position = (await at.source()).position
    async with at.ingest():
        await at.is_state("LIVE")
    assert (await at.source()).position == position
    assert len(await at.records()) == 1


async def test_apply_that_fails_leaves_the_position_and_a_restart_applies_it_once(at: Kit) -> None:
    bucket = await at.make_bucket()
    await at.make_source()
    async with at.ingest():
        for number in range(1, 7):
            last = await bucket.put("k", b"%d" % number)
        await at.reaches(last)
        at.link.away = True
        last = await bucket.put("k", b"7")
        await at.until(lambda: at.link.failed_count > 0)
    assert await at.revision() == 6
    at.link.away = False
    await copied(at, last)
    assert [record.data for record in await at.records()] == [b"%d" % number for number in range(1, 8)]


async def test_message_that_comes_back_below_the_position_stays_deleted(at: Kit) -> None:
    # Without deny_delete, so that a marker can be lost as a server's crash may lose it.
    await at.js.add_stream(
        name=f"KV_{at.bucket}", subjects=[f"$KV.{at.bucket}.>"], max_msgs_per_subject=5, discard=DiscardPolicy.NEW
    )
    bucket = await at.js.key_value(at.bucket)
    await at.make_source()
    await bucket.put("k", b"1")
    await bucket.delete("k")
    await copied(at, 2)
    await at.js.delete_msg(f"KV_{at.bucket}", 2)
    assert (await bucket.get("k")).value == b"1"
    await copied(at, await bucket.put("other", b"2"))
    assert await at.fold() == {"other": b"2"}


async def test_superseded_revisions_of_a_long_history_are_silent_holes(at: Kit) -> None:
    bucket = await at.make_bucket(history=64)
    await bucket.put("other", b"0")
    for number in range(100):
        await bucket.put("a", b"%d" % number)
    await at.make_source()
    await copied(at, 101)
    assert [record.data for record in await at.records()] == [b"0", *(b"%d" % number for number in range(36, 100))]
    assert await at.gaps() == []


async def test_first_start_behind_lost_revisions_begins_with_a_gap(at: Kit) -> None:
    bucket = await at.make_bucket(history=1)
    await configure(at, allow_msg_ttl=True)
    for number in range(5):
        await bucket.put("a", b"%d" % number)
    await at.make_source()
    await copied(at, 5)
    assert await gap_ranges(at) == [(1, 4, GapReason.SOURCE_GAP)]
    assert await at.ops() == [(Op.GAP, None), (Op.PUT, b"a")]


async def test_where_the_stream_cannot_evict_the_lost_revisions_were_superseded(at: Kit) -> None:
    await at.js.add_stream(
        name=f"KV_{at.bucket}",
        subjects=[f"$KV.{at.bucket}.>"],
        max_msgs_per_subject=1,
        discard=DiscardPolicy.NEW,
        allow_rollup_hdrs=True,
        allow_direct=True,
    )
    bucket = await at.js.key_value(at.bucket)
    await at.make_source()
    await copied(at, await bucket.put("a", b"1"))
    for number in range(4):
        await bucket.put("a", b"%d" % number)
    await copied(at, 5)
    assert await gap_ranges(at) == [(2, 4, GapReason.SUPERSEDED)]
    assert await at.fold() == {"a": b"3"}


async def test_key_purged_without_a_marker_gets_a_synthetic_delete(at: Kit) -> None:
    bucket = await at.make_bucket()
    await at.make_source()
    await bucket.put("kept", b"1")
    await copied(at, await bucket.put("gone", b"2"))
    await at.js.purge_stream(f"KV_{at.bucket}", subject=f"$KV.{at.bucket}.gone")
    last = await bucket.put("new", b"3")
    await copied(at, last)
    assert (await at.ops())[2:] == [(Op.DELETE, b"gone"), (Op.PUT, b"new")]
    assert await at.gaps() == []
    assert await at.fold() == {"kept": b"1", "new": b"3"}


async def test_marker_that_was_itself_removed_still_deletes_the_key(at: Kit) -> None:
    bucket = await at.make_bucket()
    await at.make_source()
    await bucket.put("kept", b"1")
    await copied(at, await bucket.put("gone", b"2"))
    await bucket.delete("gone")
    await bucket.purge_deletes(olderthan=-1)
    async with at.ingest():
        await at.until(lambda: is_fold(at, {"kept"}))
        await at.reaches(3)  # nothing is left there: the position moves alone
        await at.is_state("LIVE")
    assert (await at.source()).report.lag == 0


async def test_many_vanished_keys_go_in_several_batches(at: Kit) -> None:
    bucket = await at.make_bucket()
    await at.make_source()
    await bucket.put("kept", b"1")
    for number in range(2_200):
        await at.client.publish(f"$KV.{at.bucket}.gone.{number}", b"x")
    await at.client.flush()
    await copied(at, 2_201)
    await at.js.purge_stream(f"KV_{at.bucket}", subject=f"$KV.{at.bucket}.gone.>")
    await copied(at, await bucket.put("new", b"2"))
    assert await at.fold() == {"kept": b"1", "new": b"2"}
    assert at.link.batch_sizes[-4:] == [1_000, 1_000, 200, 1]


async def test_purge_of_everything_is_a_gap_and_deletes_what_is_gone(at: Kit) -> None:
    bucket = await at.make_bucket()
    await at.make_source()
    await bucket.put("a", b"1")
    await copied(at, await bucket.put("b", b"2"))
    for number in range(3):
        await bucket.put("a", b"%d" % number)
    await at.js.purge_stream(f"KV_{at.bucket}")
    await copied(at, 5)
    assert (await at.ops())[2:] == [(Op.GAP, None), (Op.DELETE, b"a"), (Op.DELETE, b"b")]
    assert await gap_ranges(at) == [(3, 5, GapReason.SOURCE_GAP)]
    assert await at.fold() == {}


async def test_resync_cut_off_in_the_middle_starts_over_and_moves_with_its_last_batch(
    at: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await at.make_bucket()
    await at.make_source()
    for number in range(1_500):
        await at.client.publish(f"$KV.{at.bucket}.gone.{number}", b"x")
    await at.client.flush()
    await copied(at, 1_500)
    await bucket.put("lost", b"1")
    await at.js.purge_stream(f"KV_{at.bucket}")
    last = await bucket.put("new", b"2")
    apply_batch = at.link.apply_batch

    async def once(
        source: str, *, fence: int, previous: bytes, new: bytes, batch: Batch | None, traceparent: str
    ) -> AppendResult:
        result = await apply_batch(source, fence=fence, previous=previous, new=new, batch=batch)
        at.link.away = True
        return result

    with monkeypatch.context() as patch:
        patch.setattr(at.link, "apply_batch", once)
        async with at.ingest():
            await at.until(lambda: at.link.away)
    at.link.away = False
    assert await at.revision() == 1_500
    assert len(await at.fold()) == 501
    await copied(at, last)
    assert await gap_ranges(at) == [(1_501, 1_501, GapReason.SOURCE_GAP)] * 2
    assert await at.fold() == {"new": b"2"}


async def test_revisions_evicted_by_limits_are_a_source_gap(at: Kit) -> None:
    bucket = await at.make_bucket()
    await at.make_source()
    await copied(at, await bucket.put("a", b"1"))
    await configure(at, discard=DiscardPolicy.OLD, max_msgs=3)
    for number in range(8):
        await bucket.put(f"k{number}", b"x")
    await copied(at, 9)
    assert await gap_ranges(at) == [(2, 6, GapReason.SOURCE_GAP)]
    assert await at.fold() == {"k5": b"x", "k6": b"x", "k7": b"x"}


async def test_live_overrun_is_a_source_gap_in_its_place_and_compares_keys(at: Kit) -> None:
    bucket = await at.make_bucket()
    await configure(at, discard=DiscardPolicy.OLD, max_msgs=3)
    await at.make_source()
    async with at.ingest():
        await at.reaches(await bucket.put("a", b"1"))
        await at.is_state("LIVE")
        # Nothing is taken while the store waits: the pulls that are out fill, then the limit passes the reader.
        at.link.applies_open.clear()
        for number in range(6_000):
            await at.client.publish(f"$KV.{at.bucket}.k{number}", b"x")
        await at.client.flush()
        await at.js.stream_info(f"KV_{at.bucket}")
        at.link.applies_open.set()
        await at.reaches(6_001)
        await at.until(lambda: is_fold(at, {"k5997", "k5998", "k5999"}))
    ranges = await gap_ranges(at)
    assert ranges
    assert {reason for _, _, reason in ranges} == {GapReason.SOURCE_GAP}
    told = {revision for first, last, _ in ranges for revision in range(first, last + 1)}
    read = {int.from_bytes(record.version, "big") for record in await at.records() if record.op == Op.PUT}
    assert told | read == set(range(1, 6_002))
    assert not told & read


async def test_hot_key_of_a_bucket_with_time_to_live_makes_no_gaps(at: Kit) -> None:
    bucket = await at.make_bucket(history=1, ttl=3_600)
    await at.make_source()
    async with at.ingest():
        await at.reaches(await bucket.put("hot", b"0"))
        at.link.applies_open.clear()
        for _ in range(6_000):
            await at.client.publish(f"$KV.{at.bucket}.hot", b"x")
        await at.client.flush()
        await at.js.stream_info(f"KV_{at.bucket}")
        at.link.applies_open.set()
        await at.reaches(6_001)
    assert await at.gaps() == []


async def test_every_hole_of_a_stream_without_a_limit_of_each_subject_is_a_gap(at: Kit) -> None:
    await at.js.add_stream(name=f"KV_{at.bucket}", subjects=[f"$KV.{at.bucket}.>"], allow_rollup_hdrs=True)
    for number in range(6):
        await at.js.publish(f"$KV.{at.bucket}.k{number}", b"x")
    for revision in (3, 4):
        await at.js.delete_msg(f"KV_{at.bucket}", revision)
    await at.make_source()
    await copied(at, 6)
    assert await gap_ranges(at) == [(3, 4, GapReason.SOURCE_GAP)]
    assert [op for op, _ in await at.ops()] == [Op.PUT, Op.PUT, Op.GAP, Op.PUT, Op.PUT]


async def test_recreated_stream_stops_the_source_and_keeps_the_fold(at: Kit) -> None:
    bucket = await at.make_bucket()
    await at.make_source()
    await copied(at, await bucket.put("a", b"1"))
    await at.js.delete_key_value(at.bucket)
    bucket = await at.make_bucket()
    for _ in range(5):
        await bucket.put("b", b"2")
    async with at.ingest():
        await at.is_state("STREAM_RECREATED")
    assert await at.fold() == {"a": b"1"}


async def test_missing_bucket_is_waited_for(at: Kit) -> None:
    await at.make_source()
    async with at.ingest():
        await at.is_state("SOURCE_LOST")
        bucket = await at.make_bucket()
        await at.reaches(await bucket.put("a", b"1"))
        await at.is_state("LIVE")
    assert [state for state in at.states() if state not in ("CONNECTING", "RESYNCING")] == ["SOURCE_LOST", "LIVE"]


async def test_bucket_deleted_while_copying_keeps_the_fold_and_stops_the_source(at: Kit) -> None:
    bucket = await at.make_bucket()
    await at.make_source()
    async with at.ingest():
        await at.reaches(await bucket.put("a", b"1"))
        await at.js.delete_key_value(at.bucket)
        await at.is_state("SOURCE_LOST")
    assert await at.fold() == {"a": b"1"}


async def test_position_ahead_of_the_stream_stops_the_source(at: Kit) -> None:
    bucket = await at.make_bucket()
    await at.make_source()
    await bucket.put("a", b"1")
    await copied(at, await bucket.put("b", b"2"))
    position = decode_position((await at.source()).position)
    assert position is not None
    await at.move(Position(position.created_ns, 9, position.sample).encode())
    async with at.ingest():
        await at.is_state("CURSOR_AHEAD")
    assert "last revision is 2" in (await at.source()).report.reason
    await at.move(Position(position.created_ns, 1, position.sample).encode())
    async with at.ingest(holder="two"):
        await at.is_state("CURSOR_AHEAD")
    assert "not the message" in (await at.source()).report.reason
    assert await at.fold() == {"a": b"1", "b": b"2"}
