"""The drill of two replicas of ingest: the one that copies is killed in the middle of a batch, and the other takes over.

The bucket is written at full speed, and the store hangs for a moment before the kill: a batch was sent and not answered.
Nothing may be lost or doubled, whoever of them wrote it, and the bucket's stream has one consumer of ours in the end.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from eddyline.cli.drill.scenarios.kill import SERVES_AGAIN_S
from eddyline.cli.drill.support.scene import Verdict, drill_context
from eddyline.cli.drill.support.writers import FAST_WRITERS
from eddyline.cli.local_cluster.folder import LOGS
from eddyline.cli.local_cluster.ports import LOOPBACK, choose_ports
from eddyline.cli.local_cluster.readiness import role_is_ready
from eddyline.cli.local_cluster.settings_check import roles_access
from eddyline.cli.local_cluster.supervisor import supervised
from eddyline.core.runtime.clock import sleep
from eddyline.core.runtime.tasks import noop

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from eddyline.cli.command import Context
    from eddyline.cli.drill.support.scene import DrillContext
    from eddyline.cli.local_cluster.cluster import LocalCluster
    from eddyline.cli.local_cluster.process import ManagedProcess, ProcessSpec
    from eddyline.core.auth.caller_channel import CallerAccess

SECOND: Final = "second"
HANG_S: Final = 0.2
"""How long the store stands still before a kill: far longer than a batch takes, far shorter than a lease."""
LOAD_S: Final = 0.5
"""Of full speed before a kill: some 2 500 writes, and as many for each second more to be read and compared."""
TAKES_OVER_S: Final = 30.0
"""A lease of 5 s runs out, and is taken within half of that."""


async def takeover_drill(
    folder: Path, cluster: LocalCluster, context: Context, *, and_back: bool, random_source: random.Random
) -> Verdict:
    """Run a second ingest beside the cluster's, kill the first under load, and look for loss.

    `and_back`: let the first come back and kill the second too.
    """
    verdict = Verdict("takeover")
    started_s = context.clock.monotonic_s()
    (folder / LOGS).mkdir(parents=True)
    first, store = cluster.supervisor.parts["ingest"], cluster.supervisor.parts["store"]
    spec = _second(first.spec, roles_access(context.environ).caller)
    async with drill_context("takeover", cluster, context, random_source) as scene, asyncio.TaskGroup() as group:
        group.create_task(scene.bucket_writer.run(scene.stop))
        try:
            async with supervised(
                [[spec]], data=folder, clock=context.clock, random_source=random_source, tell=noop
            ) as supervisor:
                verdict.findings += await _kill_holder(scene, first, store, verdict)
                verdict.findings += await _goes_on(scene, "killed")
                first.release()
                await first.wait_ready(SERVES_AGAIN_S)
                if and_back:
                    verdict.findings += await _kill_holder(scene, supervisor.parts[SECOND], store, verdict)
                    verdict.findings += await _goes_on(scene, "back")
        finally:
            first.release()
            scene.stop.set()
        verdict.findings += await scene.until_level()
        await scene.judge(verdict)
        verdict.findings += await scene.leave()
    verdict.seconds = context.clock.monotonic_s() - started_s
    return verdict


async def _kill_holder(scene: DrillContext, part: ManagedProcess, store: ManagedProcess, verdict: Verdict) -> list[str]:
    """Write at full speed, let the store hang so that a batch is on its way, and kill the replica that sent it.

    Says so where another one copied, or nothing was on its way.
    """
    loaded = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(FAST_WRITERS):
            group.create_task(scene.bucket_writer.run_fast(number, loaded))
        try:
            await sleep(scene.clock, LOAD_S)
            holder = (await scene.client.sources.get(scene.name)).holder
            # Each revision has its seq: none was lost so far.
            applied = (await scene.client.get_topic(scene.kv_topic)).head_seq
            store.suspend()
            await sleep(scene.clock, HANG_S)
            await part.kill(hold=True)
            verdict.kills += 1
        finally:
            loaded.set()
            store.resume()
    sent = max(scene.bucket_writer.acknowledged, default=0) - applied
    verdict.counts["unapplied_at_kill_max"] = max(verdict.counts.get("unapplied_at_kill_max", 0), sent)
    findings = [f"takeover: {holder} copied, not {part.spec.name}"] if holder != _holder(part) else []
    return (
        findings if sent > 0 else [*findings, f"takeover: {part.spec.name} had applied everything when it was killed"]
    )


def _holder(part: ManagedProcess) -> str:
    return part.spec.variables["EDDYLINE_INGEST_HOLDER"]


async def _goes_on(scene: DrillContext, when: str) -> list[str]:
    """Wait until what is written from now on arrives."""
    written = max(scene.bucket_writer.acknowledged, default=0)
    until_s = scene.clock.monotonic_s() + TAKES_OVER_S
    while True:
        head_seq = (await scene.client.get_topic(scene.kv_topic)).head_seq
        if head_seq > written:  # no revision was lost: each has its seq
            return []
        if scene.clock.monotonic_s() > until_s:
            return [f"takeover: the first was {when}, and no ingest copied for {TAKES_OVER_S:g} s"]
        await sleep(scene.clock, 0.1)


def _second(spec: ProcessSpec, access: CallerAccess) -> ProcessSpec:
    address = f"{LOOPBACK}:{choose_ports({}, free_ports=True)['ingest']}"
    changes = {
        "EDDYLINE_INGEST_LISTEN": address,
        "EDDYLINE_INGEST_METRICS_LISTEN": "",
        "EDDYLINE_INGEST_HOLDER": SECOND,
    }

    async def is_ready(pid: int) -> bool:
        return await role_is_ready("ingest", address, pid, access=access)

    return replace(spec, name=SECOND, address=address, is_ready=is_ready, variables={**spec.variables, **changes})
