"""The drill of a store's own jobs: SIGKILL while it takes a checkpoint, merges or rewrites segments, under load.

Every acknowledged record must exist once and in order; records deleted before the kill must stay deleted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from eddyline.cli.drill.scenarios.kill import SERVES_AGAIN_S
from eddyline.cli.drill.support import checks
from eddyline.cli.drill.support.lone_store import lone_store
from eddyline.cli.drill.support.scene import Verdict
from eddyline.cli.drill.support.writers import PACE_S, AppendWriter, StreamWriter, numbered_record
from eddyline.cli.errors import CommandError
from eddyline.core.errors import Code, EddylineError
from eddyline.core.model.topic import Kind
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Gap
from eddyline.core.runtime.clock import sleep
from eddyline.v1 import cluster_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.cli.command import Context
    from eddyline.cli.drill.support.lone_store import LoneStore
    from eddyline.client.connect import Client
    from eddyline.core.runtime.clock import Clock

STAGES: Final = {
    "checkpoint": cluster_pb2.MAINTENANCE_STAGE_CHECKPOINT,
    "merge": cluster_pb2.MAINTENANCE_STAGE_MERGE,
    "rewrite": cluster_pb2.MAINTENANCE_STAGE_REWRITE,
}
SETTINGS: Final = {
    "CHECKPOINT_INTERVAL_MS": "50",
    "CHECKPOINT_BYTES": "20000",
    "SEAL_RECORDS": "400",
    "SEAL_BYTES": "65536",
    "SEAL_AGE_MS": "50",
    "WAL_FILE_BYTES": "262144",
    "ERASE_WITHIN_H": "1",
}
"""Every job is due all the time: segments of a second's records, a checkpoint each round."""
SEEN_WITHIN_S: Final = 10.0
"""How long a stage is waited for; then the kill falls where it falls, and is not counted as one in the stage. A merge comes
every few seconds, and is over within milliseconds."""
ROUNDS_MORE: Final = 3
"""Of kills, where none so far fell into the stage."""
LOG_TOPIC: Final = "drill-log"
DYING_TOPIC: Final = "drill-dying"
DYING_RECORDS: Final = 20
DOOMED: Final = "doomed"
DELETE_EVERY: Final = 5


class DyingWriter:
    """Appends records of which half are doomed, and deletes those now and then."""

    def __init__(self, *, clock: Clock) -> None:
        self.kept = 0
        """Records that are not doomed, acknowledged."""
        self.dead_seq = 0
        """No doomed record lives up to here: an acknowledged delete was at this head."""
        self._clock = clock

    async def run(self, client: Client, stop: asyncio.Event) -> None:
        """Write until told to stop."""
        number = 0
        while not stop.is_set():
            records = [
                numbered_record(DOOMED if index % 2 else "kept", self.kept + index // 2)
                for index in range(DYING_RECORDS)
            ]
            await client.append(DYING_TOPIC, records, idempotency_key=f"dying-{number}", timeout_s=SERVES_AGAIN_S)
            self.kept += DYING_RECORDS // 2
            number += 1
            if number % DELETE_EVERY == 0:
                await self._delete(client)
            await sleep(self._clock, PACE_S)

    async def _delete(self, client: Client) -> None:
        match = Match(MatchField.TAG, MatchKind.EQ, DOOMED.encode())
        try:
            done = await client.delete_records(DYING_TOPIC, match=match)
        except EddylineError as error:
            if error.code is not Code.UNAVAILABLE:
                raise
            return  # perhaps done, perhaps not; the next one says
        self.dead_seq = done.head_seq


async def store_jobs_drill(stage: str, folder: Path, context: Context, *, rounds: int) -> Verdict:
    """Kill a store in `stage`, again and again; then look for loss and for what came back."""
    verdict = Verdict(stage)
    started_s = context.clock.monotonic_s()
    async with lone_store(folder / stage, context, settings=SETTINGS) as store:
        client, clock, stop = store.client, context.clock, asyncio.Event()
        for topic in (LOG_TOPIC, DYING_TOPIC):
            await client.create_topic(topic, Kind.LOG)
        writers: tuple[AppendWriter | StreamWriter, ...] = (
            AppendWriter("append", LOG_TOPIC, clock=clock),
            StreamWriter("stream", LOG_TOPIC, clock=clock),
        )
        dying = DyingWriter(clock=clock)
        async with asyncio.TaskGroup() as group:
            for writer in (*writers, dying):
                group.create_task(writer.run(client, stop))
            try:
                await _kill_rounds(stage, store, verdict, clock=clock, rounds=rounds)
            finally:
                stop.set()
        await _judge(client, verdict, {writer.name: writer.acknowledged for writer in writers}, dying)
    verdict.seconds = context.clock.monotonic_s() - started_s
    return verdict


async def _kill_rounds(stage: str, store: LoneStore, verdict: Verdict, *, clock: Clock, rounds: int) -> None:
    hit = 0
    for number in range(rounds + ROUNDS_MORE):
        if number >= rounds and hit:
            break
        hit += await _in_stage(STAGES[stage], store, clock)
        await store.part.kill(hold=True)
        verdict.kills += 1
        store.part.release()
        try:
            await store.part.wait_ready(SERVES_AGAIN_S)
        except CommandError as error:
            verdict.findings.append(error.message)
            return
    if not hit:
        verdict.findings.append(f"no kill of {verdict.kills} fell into a {stage}")
    await sleep(clock, 0.3)


async def _in_stage(stage: cluster_pb2.MaintenanceStage.ValueType, store: LoneStore, clock: Clock) -> bool:
    """Wait until the store is at `stage`; False = it was not seen there in time."""
    until_s = clock.monotonic_s() + SEEN_WITHIN_S
    while clock.monotonic_s() < until_s:
        status = await store.status()
        if status is not None and status.store.maintenance_stage == stage:
            return True
    return False


async def _judge(client: Client, verdict: Verdict, written: dict[str, int], dying: DyingWriter) -> None:
    items = [item async for item in client.read(LOG_TOPIC)]
    head_seq = (await client.get_topic(LOG_TOPIC)).head_seq
    verdict.findings += checks.every_seq_once("topic", items, after_seq=0, head_seq=head_seq)
    verdict.findings += checks.every_append_once(items, written)
    left = [item async for item in client.read(DYING_TOPIC)]
    verdict.findings += checks.deleted_stay_deleted(left, DOOMED, dying.dead_seq)
    kept = [item for item in left if isinstance(item, Gap) or item.tag != DOOMED]
    verdict.findings += checks.every_append_once(kept, {"kept": dying.kept})
    verdict.records += sum(written.values()) + dying.kept
