"""The drill of a store that hangs: its process stands still while a bucket is written at full speed, then goes on.

Nothing may be lost or doubled, and ingest may meanwhile hold no more than what it asked NATS for.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.cli.drill.scenarios.kill import SERVES_AGAIN_S
from eddyline.cli.drill.support.scene import Verdict, drill_context
from eddyline.cli.drill.support.writers import FAST_WRITERS
from eddyline.cli.terminal.units import format_bytes
from eddyline.core.runtime.clock import sleep

if TYPE_CHECKING:
    import random

    from eddyline.cli.command import Context
    from eddyline.cli.local_cluster.cluster import LocalCluster
    from eddyline.core.runtime.clock import Clock

LOOK_S: Final = 0.1
GROWTH_BYTES_MAX: Final = 64 << 20
"""Ingest's window is 4 096 messages, 4 KiB of memory each with what Python puts around them; and as much again."""


async def stalled_store_drill(
    cluster: LocalCluster, context: Context, *, stall_s: float, random_source: random.Random
) -> Verdict:
    """Stop the store's process for `stall_s` under full load, and look for loss and for ingest's memory."""
    verdict = Verdict("stalled")
    started_s = context.clock.monotonic_s()
    store, ingest = cluster.supervisor.parts["store"], cluster.supervisor.parts["ingest"]
    async with drill_context("stalled", cluster, context, random_source) as scene:
        async with asyncio.TaskGroup() as group:
            for number in range(FAST_WRITERS):
                group.create_task(scene.bucket_writer.run_fast(number, scene.stop))
            try:
                await sleep(context.clock, 1.0)
                before = resident_bytes(ingest.pid)
                store.suspend()
                try:
                    highest = await _highest(ingest.pid, context.clock, stall_s)
                finally:
                    store.resume()
                await store.wait_ready(SERVES_AGAIN_S)
                await sleep(context.clock, 0.5)
            finally:
                scene.stop.set()
        if highest - before > GROWTH_BYTES_MAX:
            verdict.findings.append(f"ingest: grew from {format_bytes(before)} to {format_bytes(highest)} meanwhile")
        verdict.findings += await scene.until_level()
        await scene.judge(verdict)
        verdict.findings += await scene.leave()
    verdict.seconds = context.clock.monotonic_s() - started_s
    return verdict


def resident_bytes(pid: int) -> int:
    """Resident memory of a process in bytes; 0 = this system does not report it."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


async def _highest(pid: int, clock: Clock, seconds: float) -> int:
    until_s = clock.monotonic_s() + seconds
    highest = 0
    while clock.monotonic_s() < until_s:
        highest = max(highest, resident_bytes(pid))
        await sleep(clock, LOOK_S)
    return highest
