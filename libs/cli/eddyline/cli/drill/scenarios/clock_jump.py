"""The drill of a clock that is set: an hour forward and back, under topics with a time to live.

Nothing may expire before its time, nothing that has expired may come back, and no record may be lost or have a time before
the one in front of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from eddyline.cli.drill.support import checks
from eddyline.cli.drill.support.lone_store import lone_store
from eddyline.cli.drill.support.scene import Verdict
from eddyline.cli.drill.support.shifted_clock import SHIFT_FILE
from eddyline.cli.drill.support.writers import numbered_record
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.record import Record
from eddyline.core.runtime.clock import sleep

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.cli.command import Context
    from eddyline.cli.drill.support.lone_store import LoneStore

JUMP_MS: Final = 3_600_000
LONG_TTL_MS: Final = 600_000
"""Far longer than the drill, and far shorter than the jump."""
SHORT_TTL_MS: Final = 1_000
LONG_TOPIC: Final = "drill-long"
SHORT_TOPIC: Final = "drill-short"
RECORDS: Final = 10
PATIENCE_S: Final = 15.0


async def clock_drill(folder: Path, context: Context) -> Verdict:
    """Let records expire, set the clock forward and back, and look at both topics after each step."""
    verdict = Verdict("clock")
    started_s = context.clock.monotonic_s()
    shift = folder.parent / "shift"
    _set(shift, 0)
    environ = {"CHECKPOINT_INTERVAL_MS": "200"}
    async with lone_store(
        folder / "clock",
        context,
        settings=environ,
        variables={SHIFT_FILE: str(shift)},
        module="eddyline.cli.drill.support.shifted_store",
    ) as store:
        for topic, ttl_ms in ((LONG_TOPIC, LONG_TTL_MS), (SHORT_TOPIC, SHORT_TTL_MS)):
            await store.client.create_topic(topic, Kind.LOG, TopicConfig(ttl_ms=ttl_ms))
            await store.client.append(topic, [numbered_record("clock", number) for number in range(RECORDS)])
        verdict.findings += await _expires(store, context)
        written = RECORDS
        for step_ms in (JUMP_MS, 0, -JUMP_MS, 0):
            _set(shift, step_ms)
            await store.client.append(
                LONG_TOPIC, [numbered_record("clock", written + number) for number in range(RECORDS)]
            )
            written += RECORDS
            # longer than a round of retention
            await sleep(context.clock, 1.5)
            verdict.findings += await _looks(store, f"clock shifted by {step_ms} ms", written)
        verdict.records = written
    verdict.seconds = context.clock.monotonic_s() - started_s
    return verdict


async def _expires(store: LoneStore, context: Context) -> list[str]:
    until_s = context.clock.monotonic_s() + PATIENCE_S
    while (await store.client.get_topic(SHORT_TOPIC)).record_count:
        if context.clock.monotonic_s() > until_s:
            return ["clock: records do not expire"]
        await sleep(context.clock, 0.1)
    return []


async def _looks(store: LoneStore, when: str, written: int) -> list[str]:
    items = [item async for item in store.client.read(LONG_TOPIC)]
    findings = [f"{when}: {finding}" for finding in checks.every_append_once(items, {"clock": written})]
    times = [item.ts_ms for item in items if isinstance(item, Record)]
    if any(later < earlier for earlier, later in pairwise(times)):
        findings.append(f"{when}: commit times go back")
    back = (await store.client.get_topic(SHORT_TOPIC)).record_count
    if back:
        findings.append(f"{when}: {back} expired records came back")
    return findings


def _set(shift: Path, shift_ms: int) -> None:
    """Replaced in one step: the store reads it at any time."""
    written = shift.with_suffix(".new")
    written.write_text(str(shift_ms), encoding="ascii")
    written.replace(shift)
