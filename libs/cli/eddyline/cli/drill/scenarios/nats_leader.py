"""The drill of a NATS cluster that loses its leader: three servers, a bucket on all of them, and SIGKILL for the one that
leads its stream, under load; later it comes back.

No write that NATS acknowledged may be lost or doubled, the fold must equal the bucket, and the source must be LIVE again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from eddyline.cli.drill.scenarios.kill import SERVES_AGAIN_S
from eddyline.cli.drill.support.nats_cluster import nats_cluster
from eddyline.cli.drill.support.scene import CONSUMERS_GONE_S, Verdict, drill_context
from eddyline.cli.local_cluster.cluster import LocalClusterPlan, local_cluster
from eddyline.cli.nats.cluster import SIZE
from eddyline.cli.nats.given import GivenNats
from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.tasks import noop

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from eddyline.cli.command import Context
    from eddyline.cli.drill.support.nats_cluster import NatsCluster
    from eddyline.cli.drill.support.scene import DrillContext

HEALS_S: Final = 45.0
"""An election takes up to 4 s, an API call that nobody answers 5 s, a lost connection 2 s to be made anew, each perhaps
twice; and the machine has other things to do."""
WHOLE_S: Final = 60.0
"""Until a server that was away has all of the stream."""
WRITE_S: Final = 2.0
"""Load before each kill, and while the cluster is one server short."""
LOOK_S: Final = 0.02


async def nats_leader_drill(folder: Path, context: Context, *, kills: int, random_source: random.Random) -> Verdict:
    """Kill whoever leads `kills` times, each time until the cluster is whole again, and look for loss."""
    verdict = Verdict("leader")
    started_s = context.clock.monotonic_s()
    async with (
        nats_cluster(folder / "servers", context) as trio,
        local_cluster(
            LocalClusterPlan(folder / "roles", free_ports=True, nats=GivenNats(trio.addresses, {})),
            environ=context.environ,
            clock=context.clock,
            host=context.host,
            random_source=context.random_source,
            tell=noop,
        ) as cluster,
        drill_context("leader", cluster, context, random_source, replicas=SIZE) as scene,
    ):
        verdict.findings += await _until(scene, scene.bucket.is_whole, WHOLE_S, "the bucket is not on every server")
        async with asyncio.TaskGroup() as group:
            for writer in scene.topic_writers:
                group.create_task(writer.run(scene.client, scene.stop))
            group.create_task(scene.bucket_writer.run(scene.stop))
            try:
                for _ in range(kills):
                    verdict.findings += await _loses_leader(scene, trio, verdict)
            finally:
                scene.stop.set()
        verdict.findings += await scene.until_level()
        verdict.findings += await scene.until_status("LIVE", HEALS_S)
        await scene.judge(verdict)
        verdict.findings += await scene.leave(stale_s=CONSUMERS_GONE_S)
    verdict.seconds = context.clock.monotonic_s() - started_s
    return verdict


async def _loses_leader(scene: DrillContext, trio: NatsCluster, verdict: Verdict) -> list[str]:
    """Kill the leader under load, see the source heal, and let the server come back."""
    await sleep(scene.clock, WRITE_S)
    until_s = scene.clock.monotonic_s() + HEALS_S
    while not (name := await scene.bucket.leader()):
        if scene.clock.monotonic_s() > until_s:
            return ["leader: no server leads the bucket's stream"]
        await sleep(scene.clock, LOOK_S)
    leader = trio.parts[name]
    killed_s = scene.clock.monotonic_s()
    await leader.kill(hold=True)
    verdict.kills += 1
    try:
        written = max(scene.bucket_writer.acknowledged, default=0)
        findings = await _until(scene, lambda: _copies(scene, written), HEALS_S, "the leader was killed: not LIVE")
        healed_s = round(scene.clock.monotonic_s() - killed_s, 1)
        verdict.counts["heal_s_max"] = max(verdict.counts.get("heal_s_max", 0.0), healed_s)
        await sleep(scene.clock, WRITE_S)
    finally:
        leader.release()
    await leader.wait_ready(SERVES_AGAIN_S)
    return findings + await _until(scene, scene.bucket.is_whole, WHOLE_S, "the server came back: it has not all")


async def _copies(scene: DrillContext, written: int) -> bool:
    source = await scene.client.sources.get(scene.name)
    return source.status == "LIVE" and source.position_revision > written


async def _until(scene: DrillContext, look: Callable[[], Awaitable[bool]], within_s: float, failure: str) -> list[str]:
    until_s = scene.clock.monotonic_s() + within_s
    while not await look():
        if scene.clock.monotonic_s() > until_s:
            return [f"leader: {failure} for {within_s:g} s"]
        await sleep(scene.clock, LOOK_S)
    return []
