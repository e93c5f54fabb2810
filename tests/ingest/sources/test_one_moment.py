"""Answers about a source are of one moment: state, position and lag fit each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from eddyline.core.codec.source import source_to_pb
from eddyline.core.model.source import SourceDefinition
from eddyline.v1 import source_pb2

if TYPE_CHECKING:
    from tests.support.ingest.kit import SourceKit

COUNT = 50


async def test_an_older_position_is_not_combined_with_a_newer_report(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_bucket(bucket_name, history=1)
    await bucket.put("k", b"0")
    await sources.define(SourceDefinition("s", "t", bucket_name))
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        read_early = await sources.link.get_source("s")
        for number in range(COUNT):
            await bucket.put("k", b"%d" % number)
        await sources.reaches("s", COUNT + 1)
        held = role.ownership.held["s"]
        await sources.until(lambda: held.progress.position_revision == COUNT + 1)
        source = source_to_pb(role.ownership.current(read_early))
        assert source.status == source_pb2.SOURCE_STATUS_LIVE
        assert (source.position_revision, source.last_revision, source.lag) == (COUNT + 1, COUNT + 1, 0)
        # A lease of somebody else's is not ours to speak of.
        other = replace(read_early, fence=read_early.fence + 1)
        assert role.ownership.current(other) == other


async def test_a_resync_that_is_done_is_no_longer_pending(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_bucket(bucket_name, history=1)
    await bucket.put("k", b"0")
    await sources.define(SourceDefinition("s", "t", bucket_name))
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        requested = await sources.link.control_source("s", resync=True)
        role.ownership.apply_control(requested)
        await sources.until(lambda: not source_to_pb(role.ownership.current(requested)).resync_pending)
        await sources.is_state("s", "LIVE")
        detail = role.ownership.held["s"].progress.current_report().detail
        assert detail is not None
        assert detail.decision == "accepted: 0 puts, resumed at 2"
