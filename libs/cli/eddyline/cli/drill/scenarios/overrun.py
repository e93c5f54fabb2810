"""The drill of a bucket that forgets: ingest is away for so long that NATS replaces revisions nobody has read.

Everything NATS still has when ingest comes back must come, once and in order; where the oldest of it lies past the
position, a gap must say so; what is missing in between must be missing at NATS too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.cli.drill.scenarios.kill import SERVES_AGAIN_S
from eddyline.cli.drill.support.scene import Verdict, drill_context
from eddyline.cli.nats.bucket import HISTORY
from eddyline.core.records.record import Gap

if TYPE_CHECKING:
    import random

    from eddyline.cli.command import Context
    from eddyline.cli.drill.support.scene import DrillContext
    from eddyline.cli.local_cluster.cluster import LocalCluster

KEYS: Final = 3
WRITES: Final = 4 * HISTORY * KEYS
"""Four times what the bucket can hold of these keys: three quarters are gone when ingest comes back."""


async def overrun_drill(cluster: LocalCluster, context: Context, *, random_source: random.Random) -> Verdict:
    """Hold ingest down, overwrite a few keys again and again, let it come back, and look for loss."""
    verdict = Verdict("overrun")
    started_s = context.clock.monotonic_s()
    async with drill_context("overrun", cluster, context, random_source) as scene:
        for number in range(KEYS):
            await scene.bucket_writer.write(f"key.{number}", number)
        verdict.findings += await scene.until_level()
        position = await scene.bucket.last_revision()
        ingest = cluster.supervisor.parts["ingest"]
        await ingest.kill(hold=True)
        verdict.kills += 1
        for number in range(WRITES):
            await scene.bucket_writer.write(f"key.{number % KEYS}", KEYS + number)
        gone = await _revisions_gone(scene)
        first = await scene.bucket.first_revision()
        ingest.release()
        await ingest.wait_ready(SERVES_AGAIN_S)
        scene.stop.set()
        verdict.findings += await scene.until_level()
        await scene.judge(verdict, may_be_gone={revision for revision in gone if revision > first})
        verdict.findings += await _gap_is_said(scene, position, first)
        verdict.findings += await scene.leave()
    verdict.seconds = context.clock.monotonic_s() - started_s
    return verdict


async def _revisions_gone(scene: DrillContext) -> set[int]:
    gone: set[int] = set()
    for revision in scene.bucket_writer.acknowledged:
        if not await scene.bucket.has_revision(revision):
            gone.add(revision)
    return gone


async def _gap_is_said(scene: DrillContext, position: int, first: int) -> list[str]:
    gaps = [item async for item in scene.client.read(scene.kv_topic) if isinstance(item, Gap)]
    if first <= position + 1:
        return []
    if any(gap.source_first <= position + 1 and gap.source_last >= first - 1 for gap in gaps):
        return []
    return [f"overrun: revisions {position + 1} to {first - 1} were replaced unread, and no gap says so"]
