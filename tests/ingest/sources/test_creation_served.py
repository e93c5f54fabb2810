"""Sources created at two replicas at the same time, over gRPC with a real store: a refusal leaves nothing."""

from __future__ import annotations

import asyncio
from itertools import cycle
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import SourceExists, TopicHasSource
from tests.support.cluster.processes import store_server
from tests.support.ingest.served import served_ingest

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.client.connect import Client
    from tests.support.nats.server import NatsServer

ROUNDS = 5


async def created(client: Client, name: str, topic: str, bucket: str) -> bool:
    """False = refused, since another call was faster."""
    try:
        await client.sources.create(name, topic=topic, bucket=bucket, dead_letter_topic=f"{topic}.letters")
    except (SourceExists, TopicHasSource):
        return False
    return True


@pytest.mark.parametrize("seed", [1, 2])
async def test_refused_creates_at_two_replicas_leave_no_topic(
    nats_server: NatsServer, tmp_path: Path, seed: int
) -> None:
    rng = Random(seed)
    async with (
        store_server(tmp_path) as store,
        served_ingest(nats_server.url, store, f"one{seed}") as one,
        served_ingest(nats_server.url, store, f"two{seed}") as two,
    ):
        for number in range(ROUNDS):
            # Names and topics that several want, in every combination: who loses a topic may have lost a name before.
            names = [(f"s{number}.{name}", f"t{number}.{topic}") for name in range(2) for topic in range(3)] * 2
            rng.shuffle(names)
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(created(ingest.client, name, topic, rng.choice(("A", "B"))))
                    for ingest, (name, topic) in zip(cycle((one, two)), names, strict=False)
                ]
            assert any(task.result() for task in tasks)
        created_definitions = {source.definition for source in await one.client.sources.list()}
        assert len(created_definitions) == 2 * ROUNDS
        taken = {source.topic for source in created_definitions}
        topics = {topic.name async for topic in one.client.list_topics()}
        assert taken <= topics
        # One of dead letters that lost its maker in the moment it was found there comes back with the first letter.
        assert topics <= taken | {source.dead_letter_topic for source in created_definitions}
