"""Reads of sources while ingest is away: the stores answer, and say so."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.client.admin.source_reads import SourceReads
from eddyline.client.admin.sources import sources_of
from eddyline.client.transport.call import Retry
from eddyline.client.transport.topology import Channels, Topology
from eddyline.core.errors import NotReady, SourceNotFound
from eddyline.core.model.source import SourceDefinition, SourceReport
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.runtime.clock import SystemClock
from eddyline.core.transport.channel import open_channel
from tests.support.store.served import served_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import grpc

    from tests.support.store.served import ServedStore

ANONYMOUS = "127.0.0.1:1"


async def hold(store: ServedStore, name: str) -> None:
    """A source that was LIVE, and whose holder is gone."""
    await store.link.create_topic(name, Kind.KV, TopicConfig())
    await store.link.put_source(SourceDefinition(name, name, "b"))
    fence = (await store.link.acquire_lease(name, holder="h", lease_ms=100)).fence
    await store.link.renew_lease(name, fence=fence, report=SourceReport("LIVE", "", 20, 20))
    store.clock.advance(1)


@asynccontextmanager
async def nobody() -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel(ANONYMOUS, own_connection=True) as channel:
        yield channel


def reads_of(ingest: grpc.aio.Channel, *stores: grpc.aio.Channel) -> SourceReads:
    return SourceReads([ingest, ingest], retry=Retry(SystemClock(), random_source=Random(1)), stores=stores)


async def test_stores_answer_while_no_ingest_does(tmp_path: Path) -> None:
    async with served_store(tmp_path / "0") as one, served_store(tmp_path / "1") as other, nobody() as ingest:
        await hold(one, "b")
        await hold(other, "a")
        reads = reads_of(ingest, one.channel, other.channel)
        for name in ("a", "b"):
            source = await reads.get(name)
            assert (source.status, source.lag, source.holder, source.from_store) == ("LIVE", 20, "", True)
            assert source.reported_ms == 1_000
        assert [source.definition.name for source in (await reads.list()).sources] == ["a", "b"]
        with pytest.raises(SourceNotFound):
            await reads.get("nobody")


async def test_stores_behind_one_address_get_no_call_for_their_own_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.client.admin.source_reads.CALL_TIMEOUT_S", 0.2)
    async with served_store(tmp_path / "0") as one:
        await hold(one, "b")
        channels = Channels()
        try:
            topology = Topology(cluster_id="c", stores=(one.address, one.address), ingests=(ANONYMOUS,), deliveries=())
            sources = sources_of(channels, topology, retry=Retry(SystemClock(), random_source=Random(1)))
            with pytest.raises(NotReady):
                await sources.list()
            with pytest.raises(NotReady):
                await sources.get("a")
        finally:
            await channels.close()


async def test_a_list_without_one_store_is_no_list_and_a_missing_source_may_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eddyline.client.admin.source_reads.CALL_TIMEOUT_S", 0.2)
    async with served_store(tmp_path / "0") as one, nobody() as ingest:
        await hold(one, "b")
        reads = reads_of(ingest, one.channel, ingest)
        assert (await reads.get("b")).from_store
        with pytest.raises(NotReady):
            await reads.get("a")
        with pytest.raises(NotReady):
            await reads.list()
