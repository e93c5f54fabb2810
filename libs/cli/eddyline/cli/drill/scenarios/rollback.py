"""The drill of a NATS whose store is put back to an older copy, as a restored backup does: once so that the stream ends
before the source's position, once with new writes that take it past the position before ingest looks again.

The fold keeps what it has, the source says CURSOR_AHEAD and why, reads go on and nothing more is copied. A resync that is
asked for makes the topic equal to the bucket as it is now; what is written after it comes once.
"""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.cli.drill.scenarios.kill import SERVES_AGAIN_S
from eddyline.cli.drill.support import checks
from eddyline.cli.drill.support.scene import SETTLE_S, Verdict, drill_context
from eddyline.cli.drill.support.subscriber import RecordingSubscriber
from eddyline.core.records.record import Gap
from eddyline.core.runtime.clock import sleep, wait_event

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from eddyline.cli.command import Context
    from eddyline.cli.drill.support.scene import DrillContext
    from eddyline.cli.local_cluster.cluster import LocalCluster
    from eddyline.core.records.record import Record

ROUNDS: Final = {"behind": False, "past": True}
"""Names, and whether new writes take the stream past the position."""
WRITES: Final = 60
"""To keys that the copy has too."""
NEW_KEYS: Final = 20
"""And to keys that it has not."""
TRIES: Final = 5
STOPS_S: Final = 30.0
"""Until ingest is connected again and has judged: its backoff ends at 5 s."""
STAYS_S: Final = 1.0
"""How long nothing may be copied: a live source copies within some milliseconds."""
AHEAD: Final = "CURSOR_AHEAD"


class TopicContent(NamedTuple):
    """A topic's content at the moment its source stopped."""

    items: list[Record | Gap]
    fold: dict[bytes, bytes]


async def rollback_drill(cluster: LocalCluster, context: Context, *, random_source: random.Random) -> Verdict:
    """Put NATS back twice, ask for a resync each time, and compare topic and bucket."""
    verdict = Verdict("rollback")
    started_s = context.clock.monotonic_s()
    async with drill_context("rollback", cluster, context, random_source) as scene:
        mark = 0
        for name, past in ROUNDS.items():
            verdict.findings += [
                f"{name}: {finding}" for finding in await _round(scene, cluster, verdict, mark, name=name, past=past)
            ]
            mark = (await scene.client.get_topic(scene.kv_topic)).head_seq
            scene.bucket_writer = scene.new_writer()
        await _writes(scene, "key", WRITES)
        scene.stop.set()
        verdict.findings += await scene.until_level()
        await scene.judge(verdict, after_seq=mark)
        if verdict.gaps != len(ROUNDS):
            verdict.findings.append(f"rollback: {verdict.gaps} gaps, and NATS was put back {len(ROUNDS)} times")
        verdict.findings += await scene.leave()
    verdict.seconds = context.clock.monotonic_s() - started_s
    return verdict


async def _round(
    scene: DrillContext, cluster: LocalCluster, verdict: Verdict, mark: int, *, name: str, past: bool
) -> list[str]:
    """Take a copy, write and copy more, put the copy back, look, resync. `mark` = what is new begins behind this seq."""
    await _writes(scene, "key", WRITES)
    older = cluster.data / "nats-older"
    await _while_down(cluster, verdict, partial(_copy, cluster.nats_data, older))
    await _writes(scene, "key", WRITES)
    await _writes(scene, f"lost-{name}", NEW_KEYS)
    findings = await scene.until_level()
    kept = await _kept(scene)
    puts = scene.bucket_writer
    findings += checks.every_revision_once(checks.messages_of(kept.items[mark:]), puts.acknowledged, puts.unknown)
    verdict.revisions += len(puts.acknowledged)
    position = await scene.bucket.last_revision()
    scene.bucket_writer = scene.new_writer()
    ingest = cluster.supervisor.parts["ingest"]
    if past:
        ingest.suspend()
    try:
        await _while_down(cluster, verdict, partial(_copy, older, cluster.nats_data))
        last = await scene.bucket.last_revision()
        verdict.counts[f"{name}_lost_revisions"] = position - last
        if past:
            await _writes(scene, f"new-{name}", position - last + NEW_KEYS)
            last = await scene.bucket.last_revision()
    finally:
        if past:
            ingest.resume()
    if (last > position) != past:
        findings.append(f"NATS is at revision {last} after it was put back, the source at {position}")
    findings += await _stands_still(scene, kept, position)
    verdict.counts[f"{name}_kept_keys"] = len(kept.fold)
    await scene.client.sources.resync(scene.name)
    findings += await scene.until_status("LIVE", STOPS_S)
    findings += await scene.until_level()
    findings += await scene.equals_bucket()
    resynced = (await _kept(scene)).items[len(kept.items) :]
    verdict.counts[f"{name}_resynced_records"] = len(resynced)
    ends = [item.source_last for item in resynced if isinstance(item, Gap)]
    if ends != [0]:
        findings.append(f"gaps: expected one without an end, since the undone revisions are unknown; got {ends}")
    return findings


async def _stands_still(scene: DrillContext, kept: TopicContent, position: int) -> list[str]:
    """The source says why it stopped; the topic is as it was, and is read by who was there and by who comes."""
    findings = await scene.until_status(AHEAD, STOPS_S)
    source = await scene.client.sources.get(scene.name)
    if str(position) not in source.reason:
        findings.append(f"source: {source.status} does not name revision {position}: {source.reason!r}")
    await _writes(scene, "key", NEW_KEYS)
    await sleep(scene.clock, STAYS_S)
    now = await _kept(scene)
    if now.items != kept.items:
        findings.append(f"topic: {len(now.items)} records while the source stands still, {len(kept.items)} before")
    findings += checks.same_values("fold", now.fold, kept.fold)
    newcomer, level = RecordingSubscriber("a newcomer", [scene.kv_topic], "snapshot"), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(newcomer.run(scene.client, level))
        if not await wait_event(scene.clock, level, SETTLE_S) or newcomer.failure is not None:
            findings.append(f"newcomer: reads nothing ({newcomer.failure})")
        watching.cancel()
    findings += checks.same_values(newcomer.name, newcomer.live[scene.kv_topic], kept.fold)
    for witness in scene.witnesses:
        if witness.failure is not None:
            findings.append(f"{witness.name}: {witness.failure.reason}: {witness.failure.message}")
    return findings


async def _kept(scene: DrillContext) -> TopicContent:
    items = [item async for item in scene.client.read(scene.kv_topic)]
    return TopicContent(items, await scene.fold())


async def _writes(scene: DrillContext, key: str, count: int) -> None:
    """So many acknowledged writes, to keys of their own: NATS may just be coming back."""
    acknowledged = scene.bucket_writer.acknowledged
    wanted = len(acknowledged) + count
    for number in range(TRIES * count):
        if len(acknowledged) >= wanted:
            return
        await scene.bucket_writer.write(f"{key}.{number % count}", len(acknowledged))


async def _while_down(cluster: LocalCluster, verdict: Verdict, change: Callable[[], object]) -> None:
    """Kill nats-server, change its files, and let it come back."""
    nats = cluster.supervisor.parts["nats"]
    await nats.kill(hold=True)
    verdict.kills += 1
    try:
        change()
    finally:
        nats.release()
    await nats.wait_ready(SERVES_AGAIN_S)


def _copy(source: Path, target: Path) -> None:
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target)
