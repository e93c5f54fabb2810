"""The scene of one drill: its topic, bucket and source, writers and witnesses on them, and the checks at its end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from eddyline.cli.commands.sources.source import comparison_text
from eddyline.cli.drill.support import checks
from eddyline.cli.drill.support.subscriber import RecordingSubscriber
from eddyline.cli.drill.support.writers import AppendWriter, BucketWriter, StreamWriter
from eddyline.cli.nats.bucket import nats_connection, open_bucket
from eddyline.client.connect import connect
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Gap
from eddyline.core.runtime.clock import sleep, wait_event

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from eddyline.cli.command import Context
    from eddyline.cli.local_cluster.cluster import LocalCluster
    from eddyline.cli.nats.bucket import Bucket
    from eddyline.client.connect import Client
    from eddyline.core.runtime.clock import Clock

SETTLE_S: Final = 60.0
"""How long positions and subscribers may take to be level once the writers have stopped."""
CONSUMERS_GONE_S: Final = 40.0
"""Consumers have an inactive threshold of 30 s: what is still there after 40 s was left behind."""


@dataclass(slots=True)
class Verdict:
    """The result of a drill: counts for its line, and failures."""

    name: str
    kills: int = 0
    records: int = 0
    revisions: int = 0
    resumes: int = 0
    gaps: int = 0
    counts: dict[str, float] = field(default_factory=dict)
    """Counts that only this drill has, by name, the unit last."""
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)


class DrillContext:
    """The context of one drill: cluster, writers, timing. `log_topic` has our records, `kv_topic` what ingest copies from
    `bucket`."""

    def __init__(
        self, name: str, *, client: Client, bucket: Bucket, clock: Clock, random_source: random.Random
    ) -> None:
        self.name = name
        self.log_topic = f"drill-{name}-log"
        self.kv_topic = f"drill-{name}-kv"
        self.client = client
        self.bucket = bucket
        self.clock = clock
        self.random_source = random_source
        self.stop = asyncio.Event()
        self.topic_writers: tuple[AppendWriter | StreamWriter, ...] = (
            AppendWriter("append", self.log_topic, clock=clock),
            StreamWriter("stream", self.log_topic, clock=clock),
        )
        self.bucket_writer = self.new_writer()
        self.witnesses = (
            RecordingSubscriber("from the start", [self.log_topic, self.kv_topic], "earliest"),
            RecordingSubscriber("from a snapshot", [self.kv_topic], "snapshot"),
            RecordingSubscriber("from the tail", [self.log_topic], "tail"),
        )

    def new_writer(self) -> BucketWriter:
        """A writer of the bucket that knows of no writes yet."""
        return BucketWriter("w", self.bucket, clock=self.clock, random_source=self.random_source)

    async def until_status(self, wanted: str, within_s: float) -> list[str]:
        """Wait until the source is in a state; says what it is where it is not in time."""
        deadline_s = self.clock.monotonic_s() + within_s
        while True:
            source = await self.client.sources.get(self.name)
            if source.status == wanted:
                return []
            if self.clock.monotonic_s() > deadline_s:
                return [
                    f"source: {source.status} {source.reason}, not {wanted} within {within_s:g} s".replace("  ", " ")
                ]
            await sleep(self.clock, 0.1)

    async def until_level(self) -> list[str]:
        """Wait until source and witnesses have everything; says what is not level in time."""
        deadline_s = self.clock.monotonic_s() + SETTLE_S
        while True:
            findings = await self._not_level()
            if not findings or self.clock.monotonic_s() > deadline_s:
                return findings
            await sleep(self.clock, 0.1)

    async def equals_bucket(self) -> list[str]:
        """The copy's live values are the bucket's, key by key."""
        bucket = {key.encode(): value for key, value in (await self.bucket.live_values()).items()}
        return checks.same_values("bucket", bucket, await self.fold())

    async def fold(self) -> dict[bytes, bytes]:
        """The copy's live values."""
        return {entry.key or b"": entry.data or b"" async for entry in self.client.range(self.kv_topic)}

    async def judge(self, verdict: Verdict, *, may_be_gone: set[int] | None = None, after_seq: int = 0) -> None:
        """Compare what was written, what is stored and what was seen.

        `after_seq`: what the bucket's writer wrote is in the copy's records behind it.
        """
        log_items = [item async for item in self.client.read(self.log_topic)]
        kv_items = [item async for item in self.client.read(self.kv_topic)]
        log_head = (await self.client.get_topic(self.log_topic)).head_seq
        kv_head = (await self.client.get_topic(self.kv_topic)).head_seq
        written = {writer.name: writer.acknowledged for writer in self.topic_writers}
        puts = self.bucket_writer
        found = verdict.findings
        found += checks.every_seq_once("topic", log_items, after_seq=0, head_seq=log_head)
        found += checks.every_append_once(log_items, written)
        found += checks.every_seq_once("copy", kv_items, after_seq=0, head_seq=kv_head)
        messages = checks.messages_of(kv_items[after_seq:])
        found += checks.every_revision_once(messages, puts.acknowledged, puts.unknown, may_be_gone=may_be_gone or ())
        compared = await self.client.sources.compare(self.name)
        if not compared.equal:
            found.append(comparison_text(self.name, compared))
        fold = await self.fold()
        heads = {self.log_topic: log_head, self.kv_topic: kv_head}
        stored = {self.log_topic: log_items, self.kv_topic: kv_items}
        for witness in self.witnesses:
            if witness.failure is not None:
                found.append(f"{witness.name}: {witness.failure.reason}: {witness.failure.message}")
                continue
            for topic, items in witness.items.items():
                after_seq = _place_before(witness, topic)
                found += checks.every_seq_once(witness.name, items, after_seq=after_seq, head_seq=heads[topic])
                if items != stored[topic][after_seq:] and len(items) == heads[topic] - after_seq:
                    found.append(f"{witness.name}: the records received of {topic} differ from those stored")
            if witness.start != "tail" and self.kv_topic in witness.live:
                found += checks.same_values(witness.name, witness.live[self.kv_topic], fold)
        verdict.records += sum(written.values())
        verdict.revisions += len(puts.acknowledged)
        verdict.resumes += sum(witness.resume_count for witness in self.witnesses)
        verdict.gaps += sum(isinstance(item, Gap) for item in kv_items)

    async def leave(self, *, stale_s: float = 0.0) -> list[str]:
        """Delete the source; no consumer may be left on the bucket's stream.

        `stale_s`: how long one of an attempt before may still be there, where nobody could delete it.
        """
        deadline_s = self.clock.monotonic_s() + stale_s
        while len(present := await self.bucket.consumer_names()) > 1 and self.clock.monotonic_s() < deadline_s:
            await sleep(self.clock, 0.1)
        findings = [f"consumers: {len(present)} at once: {', '.join(present)}"] if len(present) > 1 else []
        await self.client.sources.delete(self.name)
        deadline_s = self.clock.monotonic_s() + CONSUMERS_GONE_S
        while left := await self.bucket.consumer_names():
            if self.clock.monotonic_s() > deadline_s:
                return [*findings, f"consumers: left behind: {', '.join(left)}"]
            await sleep(self.clock, 0.1)
        return findings

    async def _not_level(self) -> list[str]:
        findings: list[str] = []
        source = await self.client.sources.get(self.name)
        last = await self.bucket.last_revision()
        if source.position_revision != last:
            findings.append(
                f"source: at revision {source.position_revision} of {last} ({source.status} {source.reason})"
            )
        for topic in (self.log_topic, self.kv_topic):
            head = (await self.client.get_topic(topic)).head_seq
            findings += [
                f"{witness.name}: at seq {witness.seen_seq[topic]} of {head} in {topic}"
                for witness in self.witnesses
                if topic in witness.seen_seq and witness.seen_seq[topic] < head and witness.failure is None
            ]
        return findings


@asynccontextmanager
async def drill_context(
    name: str, cluster: LocalCluster, context: Context, random_source: random.Random, *, replicas: int = 1
) -> AsyncIterator[DrillContext]:
    """Make topic, bucket and source, and start the witnesses; the writers are the drill's."""
    async with (
        connect(
            cluster.address,
            access=context.access,
            clock=context.clock,
            random_source=context.random_source,
            timeout_s=30.0,
        ) as client,
        nats_connection(cluster.nats_url) as connection,
    ):
        bucket = await open_bucket(connection, f"drill-{name}", replicas=replicas)
        scene = DrillContext(name, client=client, bucket=bucket, clock=context.clock, random_source=random_source)
        await client.create_topic(scene.log_topic, Kind.LOG)
        await client.sources.create(name, bucket=bucket.name, topic=scene.kv_topic)
        async with asyncio.TaskGroup() as group:
            watching = []
            for witness in scene.witnesses:
                level = asyncio.Event()
                watching.append(group.create_task(witness.run(client, level)))
                await wait_event(context.clock, level, SETTLE_S)
            yield scene
            for task in watching:
                task.cancel()


def _place_before(witness: RecordingSubscriber, topic: str) -> int:
    """The seq behind which a witness began: its snapshot's, else 0, since all topics were empty when it was level."""
    return witness.snapshot_seq.get(topic, 0) if witness.start == "snapshot" else 0
