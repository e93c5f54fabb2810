"""Ownership of a source: two replicas that both believe they have it, and one that vanishes without notice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.support.ingest.kit import LEASE_MS
from tests.support.sim.cut_link import CutLink

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

    from tests.support.ingest.kit import SourceKit

PUTS = 300
TAKEN_MIN = 5
"""Leases granted, so that each replica had some of them."""


def values(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def writes(bucket: KeyValue) -> int:
    """Put again and again; returns the last revision."""
    last = 0
    for number in range(PUTS):
        last = await bucket.put(f"k{number % 7}", b"%d" % number)
    return last


async def test_two_replicas_that_both_believe_they_hold_a_source_copy_each_change_once(
    sources: SourceKit, bucket_name: str
) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    # One name for two: each takes the lease from the other whenever it looks, and goes on copying until it is refused.
    put = last = 0
    async with sources.ingest(holder="same"), sources.ingest(holder="same"):
        while (await sources.link.get_source("s")).fence < TAKEN_MIN:
            last = await bucket.put(f"k{put % 7}", b"%d" % put)
            put += 1
        await sources.reaches("s", last)
    assert [row.data for row in await sources.rows("t")] == values(put)


async def test_replica_that_vanishes_is_followed_by_another_that_goes_on_where_it_was(
    sources: SourceKit, bucket_name: str
) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    cut = CutLink(sources.link)
    async with sources.ingest(holder="first", link=cut):
        await sources.is_state("s", "LIVE")
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(writes(bucket))
            await sources.reaches("s", 20)
            cut.cut()  # in mid-batch: no word to the store any more, no lease given back
            async with sources.ingest(holder="second"):

                async def is_taken() -> bool:
                    return (await sources.link.get_source("s")).holder == "second"

                await sources.until(is_taken, seconds=10 * LEASE_MS / 1000)
                await sources.reaches("s", await writing)
                cut.mend()  # the first one is back, and believes that it still holds the source
                last = await bucket.put("more", b"%d" % PUTS)
                await sources.reaches("s", last)
                await sources.is_state("s", "LIVE")
    assert [row.data for row in await sources.rows("t")] == values(PUTS + 1)
