"""The drill of a bucket that is emptied: evicted past the cursor by a limit, purged whole, and deleted and made again.

Messages removed before ingest read them must appear as a gap, and removed keys must leave the fold. Another bucket of the
same name must stop the source and leave the topic unchanged until a requested resync makes them equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.cli.drill.scenarios.kill import SERVES_AGAIN_S
from eddyline.cli.drill.support.scene import Verdict, drill_context
from eddyline.core.records.record import Gap

if TYPE_CHECKING:
    import random

    from eddyline.cli.command import Context
    from eddyline.cli.drill.support.scene import DrillContext
    from eddyline.cli.local_cluster.cluster import LocalCluster

WRITES: Final = 60
STOPS_S: Final = 30.0
"""A source looks at its bucket at least each 10 s."""
RECREATED: Final = "STREAM_RECREATED"


async def emptied_bucket_drill(cluster: LocalCluster, context: Context, *, random_source: random.Random) -> Verdict:
    """Empty a bucket in three ways, twice while ingest is down, and check gaps, fold and source state."""
    verdict = Verdict("emptied")
    started_s = context.clock.monotonic_s()
    ingest = cluster.supervisor.parts["ingest"]
    async with drill_context("emptied", cluster, context, random_source) as scene:
        await _writes(scene)
        verdict.findings += await scene.until_level()
        position = await scene.bucket.last_revision()
        gone: set[int] = set()
        for whole in (False, True):
            await ingest.kill(hold=True)
            verdict.kills += 1
            await _writes(scene)
            last = await scene.bucket.last_revision()
            if whole:
                await scene.bucket.purge(below_revision=last + 1)
            else:
                await scene.bucket.limit(WRITES // 2)
            first = await scene.bucket.first_revision()
            gone.update(range(position + 1, first))
            ingest.release()
            await ingest.wait_ready(SERVES_AGAIN_S)
            verdict.findings += await scene.until_level()
            verdict.findings += await _gap_is_said(scene, position + 1, first - 1)
            await scene.bucket.limit(0)
            position = last
        scene.stop.set()
        await scene.judge(verdict, may_be_gone=gone)
        left = [entry.key async for entry in scene.client.range(scene.kv_topic)]
        verdict.findings += [f"emptied: {len(left)} keys of a purged bucket are in the fold"] if left else []
        await _writes(scene)
        verdict.findings += await scene.until_level()
        verdict.findings += await _another_is_noticed(scene)
        await scene.client.sources.resync(scene.name)
        verdict.findings += await scene.until_status("LIVE", STOPS_S)
        verdict.findings += await scene.until_level()
        verdict.findings += await scene.equals_bucket()
        verdict.findings += await scene.leave()
    verdict.seconds = context.clock.monotonic_s() - started_s
    return verdict


async def _writes(scene: DrillContext) -> None:
    for number in range(WRITES):
        await scene.bucket_writer.write(f"key.{number}", number)


async def _gap_is_said(scene: DrillContext, first: int, last: int) -> list[str]:
    gaps = [item async for item in scene.client.read(scene.kv_topic) if isinstance(item, Gap)]
    if any(gap.source_first <= first and gap.source_last >= last for gap in gaps):
        return []
    return [f"emptied: revisions {first} to {last} left unread, and no gap says so"]


async def _another_is_noticed(scene: DrillContext) -> list[str]:
    head_seq = (await scene.client.get_topic(scene.kv_topic)).head_seq
    await scene.bucket.make_anew()
    await scene.bucket.put("other", b"another bucket")
    if findings := await scene.until_status(RECREATED, STOPS_S):
        return [f"emptied: a bucket was recreated: {finding}" for finding in findings]
    after_seq = (await scene.client.get_topic(scene.kv_topic)).head_seq
    return [f"emptied: {after_seq - head_seq} records of another bucket were copied"] if after_seq != head_seq else []
