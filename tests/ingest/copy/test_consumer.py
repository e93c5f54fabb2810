"""The consumer alone: bounds of its pulls, and messages larger than a pull."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.core.runtime.clock import SystemClock
from eddyline.ingest.config import IngestSettings
from eddyline.ingest.copy.batch import CHUNK_RECORDS_MAX
from eddyline.ingest.copy.consumer import WINDOW_RECORDS, Consumer, ConsumerLost
from eddyline.ingest.nats.connection import Connection
from eddyline.ingest.nats.jetstream import JetStream, Subjects
from eddyline.ingest.nats.login import nats_access
from eddyline.ingest.resync.resync import vanished_keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.ingest.nats.stream import Stream
    from tests.support.ingest.kit import BucketKit


@asynccontextmanager
async def connected(kit: BucketKit) -> AsyncIterator[tuple[Connection, JetStream]]:
    """Open a connection as ingest does."""
    connection = Connection(
        nats_access(IngestSettings(nats_url=kit.url)),
        name="test",
        clock=SystemClock(),
        rng=Random(1),
        on_change=lambda: None,
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(connection.run())
        try:
            await connection.wait_connected()
            yield connection, JetStream(connection)
        finally:
            running.cancel()


def consumer(
    connection: Connection, jetstream: JetStream, stream: Stream, *, pull_bytes_max: int = 1 << 20
) -> Consumer:
    """Make a consumer of every message."""
    return Consumer(
        connection,
        jetstream,
        stream,
        name="one",
        start_revision=1,
        start_ns=0,
        clock=SystemClock(),
        metadata={},
        on_lost=lambda _reason: None,
        heartbeat_s=2,
        pull_bytes_max=pull_bytes_max,
    )


async def test_message_larger_than_a_pull_is_fetched_alone_and_reading_goes_on(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    sizes = [10, 3_000, 20, 5_000, 30]
    for size in sizes:
        await bucket.put("k", b"x" * size)
    async with connected(kit) as (connection, jetstream):
        stream = await jetstream.stream(kit.bucket)
        async with consumer(connection, jetstream, stream, pull_bytes_max=2_000) as reading:
            found: list[int] = []
            while len(found) < len(sizes):
                chunk = await asyncio.wait_for(reading.next_chunk(), 5)
                assert chunk is not None
                found += [len(data) for data in chunk.data]
    assert found == sizes


async def test_pulls_request_no_more_than_the_window(kit: BucketKit) -> None:
    await kit.make_bucket()
    for number in range(WINDOW_RECORDS + 3_000):
        await kit.client.publish(f"$KV.{kit.bucket}.k{number}", b"")
    await kit.client.flush()
    async with connected(kit) as (connection, jetstream):
        stream = await jetstream.stream(kit.bucket)
        async with consumer(connection, jetstream, stream) as reading:
            chunk = await reading.next_chunk()
            # Nobody takes any more: what arrives stays within what was asked for.
            info = await kit.js.consumer_info(stream.name, "one")
            for _ in range(20):
                info = await kit.js.consumer_info(stream.name, "one")
            assert chunk is not None
            assert info.delivered is not None
            assert info.delivered.consumer_seq <= WINDOW_RECORDS
            count = chunk.count
            while count < WINDOW_RECORDS + 3_000:
                chunk = await asyncio.wait_for(reading.next_chunk(), 5)
                assert chunk is not None
                assert chunk.count <= CHUNK_RECORDS_MAX
                count += chunk.count


async def test_what_was_gathered_is_handed_out_before_the_loss(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    await bucket.put("k", b"1")
    async with connected(kit) as (connection, jetstream):
        stream = await jetstream.stream(kit.bucket)
        async with consumer(connection, jetstream, stream) as reading:
            first = await reading.next_chunk()
            assert first is not None
            await bucket.put("k", b"2")
            while reading.drained and reading.last_seen_revision < 2:
                await kit.client.flush()
            reading.break_off("enough")
            second = await reading.next_chunk()
            assert second is not None
            assert second.revisions == [2]
            with pytest.raises(ConsumerLost, match="enough"):
                await reading.next_chunk()


async def test_candidates_of_a_paged_listing_are_confirmed_one_by_one(
    kit: BucketKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await kit.make_copied_bucket()
    for key in ("kept", "missed", "gone"):
        last = await bucket.put(key, b"1")
    async with kit.ingest():
        await kit.reaches(last)
    await kit.js.purge_stream(f"KV_{kit.bucket}", subject=f"$KV.{kit.bucket}.gone")
    async with connected(kit) as (_connection, jetstream):
        stream = await jetstream.stream(kit.bucket)

        async def paged(_: Stream) -> Subjects:
            return Subjects(frozenset((stream.prefix + b"kept",)), paged=True)

        monkeypatch.setattr(jetstream, "subjects", paged)
        found = await vanished_keys(jetstream, stream, kit.link.range_entries(kit.bucket))
    assert found == [b"gone"]
