"""The drill of one part, or of all at once: SIGKILL under load, several times, each time until it serves again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from eddyline.cli.drill.support.scene import Verdict, drill_context
from eddyline.cli.errors import CommandError
from eddyline.core.runtime.clock import sleep

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from eddyline.cli.command import Context
    from eddyline.cli.drill.support.pace import DrillTiming
    from eddyline.cli.local_cluster.cluster import LocalCluster

SERVES_AGAIN_S: Final = 60.0


async def kill_drill(
    name: str,
    victims: Sequence[str],
    cluster: LocalCluster,
    context: Context,
    *,
    pace: DrillTiming,
    random_source: random.Random,
) -> Verdict:
    """Kill `victims` again and again while everybody writes and watches; then look for loss."""
    verdict = Verdict(name)
    started_s = context.clock.monotonic_s()
    async with drill_context(name, cluster, context, random_source) as scene:
        async with asyncio.TaskGroup() as group:
            for writer in scene.topic_writers:
                group.create_task(writer.run(scene.client, scene.stop))
            group.create_task(scene.bucket_writer.run(scene.stop))
            try:
                await _kill_rounds(victims, cluster, context, verdict, pace=pace, random_source=random_source)
            finally:
                scene.stop.set()
        verdict.findings += await scene.until_level()
        await scene.judge(verdict)
        verdict.findings += await scene.leave()
    verdict.seconds = context.clock.monotonic_s() - started_s
    return verdict


async def _kill_rounds(
    victims: Sequence[str],
    cluster: LocalCluster,
    context: Context,
    verdict: Verdict,
    *,
    pace: DrillTiming,
    random_source: random.Random,
) -> None:
    parts = [cluster.supervisor.parts[victim] for victim in victims]
    for _ in range(pace.rounds):
        await sleep(context.clock, random_source.uniform(pace.write_s / 2, pace.write_s))
        down_s = random_source.uniform(0.0, pace.down_s)
        for part in parts:
            await part.kill(hold=True)
            verdict.kills += 1
        await sleep(context.clock, down_s)
        for part in parts:
            part.release()
        try:
            for part in parts:
                await part.wait_ready(SERVES_AGAIN_S)
        except CommandError as error:
            verdict.findings.append(error.message)
            return
        if pace.is_over(context.clock):
            break
    await sleep(context.clock, pace.write_s / 2)
