"""Purges of unread messages: reported as lost, whatever the bucket's settings are and however it is written again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from nats.js.api import DiscardPolicy

from eddyline.core.model.source import SourceDefinition
from eddyline.core.records.record import Gap, GapReason, Op
from tests.ingest.resync.test_resume import copied, gap_ranges, is_fold

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

    from tests.support.ingest.kit import BucketKit, SourceKit


async def make_plain(kit: BucketKit | SourceKit, name: str, history: int) -> KeyValue:
    """Make a bucket without eviction and expiry, as older clients and NATS's command make it."""
    await kit.js.add_stream(
        name=f"KV_{name}",
        subjects=[f"$KV.{name}.>"],
        max_msgs_per_subject=history,
        discard=DiscardPolicy.NEW,
        allow_rollup_hdrs=True,
        allow_direct=True,
    )
    return await kit.js.key_value(name)


@pytest.mark.parametrize("history", [1, 5, 64])
@pytest.mark.parametrize("after", ["nothing", "other keys", "the same keys"])
async def test_purge_while_ingest_is_away_is_a_source_gap(kit: BucketKit, history: int, after: str) -> None:
    bucket = await make_plain(kit, kit.bucket, history)
    await kit.make_source()
    await bucket.put("a", b"1")
    await copied(kit, await bucket.put("b", b"1"))
    for _ in range(2):
        await bucket.put("a", b"2")
        last = await bucket.put("b", b"2")
    await kit.js.purge_stream(f"KV_{kit.bucket}")
    for key in {"nothing": (), "other keys": ("c", "d"), "the same keys": ("a", "b")}[after]:
        end = await bucket.put(key, b"3")
        await kit.js.stream_info(f"KV_{kit.bucket}")
    await copied(kit, last if after == "nothing" else end)
    # Of one revision a key, all written again: newer writes alone would leave the same.
    is_seen = (history, after) != (1, "the same keys")
    assert await gap_ranges(kit) == [(3, last, GapReason.SOURCE_GAP if is_seen else GapReason.SUPERSEDED)]
    keys = {"nothing": set(), "other keys": {"c", "d"}, "the same keys": {"a", "b"}}[after]
    assert set(await kit.fold()) == keys


async def test_purge_of_a_stream_while_ingest_is_away_is_a_source_gap(sources: SourceKit, bucket_name: str) -> None:
    await sources.js.add_stream(name=bucket_name, subjects=[f"{bucket_name}.>"], discard=DiscardPolicy.NEW)
    await sources.define(SourceDefinition("s", "t", stream=bucket_name))
    async with sources.ingest():
        await sources.reaches("s", (await sources.js.publish(f"{bucket_name}.a", b"1")).seq)
    await sources.js.publish(f"{bucket_name}.a", b"2")
    await sources.js.purge_stream(bucket_name)
    last = (await sources.js.publish(f"{bucket_name}.a", b"3")).seq
    async with sources.ingest():
        await sources.reaches("s", last)
    (gap,) = [item for item in await sources.items("t") if isinstance(item, Gap)]
    assert (gap.source_first, gap.source_last, gap.reason) == (2, 2, GapReason.SOURCE_GAP)


async def test_purge_stops_a_source_whose_policy_is_to_stop(sources: SourceKit, bucket_name: str) -> None:
    bucket = await make_plain(sources, bucket_name, 5)
    await sources.define(SourceDefinition("s", "t", bucket_name, on_expired="STOP"))
    async with sources.ingest():
        await sources.reaches("s", await bucket.put("a", b"1"))
        await sources.is_state("s", "LIVE")
    await bucket.put("a", b"2")
    await sources.js.purge_stream(f"KV_{bucket_name}")
    await bucket.put("a", b"3")
    async with sources.ingest():
        await sources.is_state("s", "CURSOR_EXPIRED")


@pytest.mark.parametrize("history", [1, 2, 5])
async def test_newer_writes_alone_are_no_purge(kit: BucketKit, history: int) -> None:
    bucket = await make_plain(kit, kit.bucket, history)
    await kit.make_source()
    await copied(kit, await bucket.put("a", b"0"))
    for number in range(1, history + 3):
        last = await bucket.put("a", b"%d" % number)
    await copied(kit, last)
    assert await gap_ranges(kit) == [(2, last - history, GapReason.SUPERSEDED)]


@pytest.mark.parametrize(("history", "after"), [(1, 3), (64, 0)])
async def test_purge_during_the_first_copy_is_a_source_gap_of_what_was_not_read(
    kit: BucketKit, history: int, after: int
) -> None:
    bucket = await make_plain(kit, kit.bucket, history)
    for number in range(18_000):
        await kit.client.publish(f"$KV.{kit.bucket}.k{number}", b"x")
    await kit.client.flush()
    await kit.until(lambda: is_last(kit, 18_000))
    await kit.make_source()
    # Nothing is taken while the store waits: the window fills, and what is behind it is purged.
    kit.link.applies_open.clear()
    async with kit.ingest():
        await kit.until(lambda: kit.link.applying > 0)
        await kit.js.purge_stream(f"KV_{kit.bucket}")
        for number in range(after):
            await bucket.put(f"new{number}", b"y")
        kit.link.applies_open.set()
        await kit.reaches(18_000 + after)
        await kit.is_state("LIVE")
        await kit.until(lambda: is_fold(kit, {f"new{number}" for number in range(after)}))
    ranges = await gap_ranges(kit)
    assert {reason for _, _, reason in ranges} == {GapReason.SOURCE_GAP}
    gap_revisions = {revision for first, last, _ in ranges for revision in range(first, last + 1)}
    read = {int.from_bytes(record.version, "big") for record in await kit.records() if record.op == Op.PUT}
    assert gap_revisions | read == set(range(1, 18_001 + after))
    assert not gap_revisions & read


async def is_last(kit: BucketKit, revision: int) -> bool:
    """True = the bucket has reached this revision."""
    return (await kit.js.stream_info(f"KV_{kit.bucket}")).state.last_seq >= revision
