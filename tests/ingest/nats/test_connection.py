"""Choice of the server: a connection leaves one that answers nothing, if there is another."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.core.runtime.clock import SystemClock
from eddyline.ingest.config import IngestSettings
from eddyline.ingest.nats.connection import Connection
from eddyline.ingest.nats.jetstream import Json, has_majority, peer_troubles
from eddyline.ingest.nats.login import nats_access
from tests.support.nats.server import running_nats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.ingest.kit import BucketKit


@asynccontextmanager
async def connected(url: str, monkeypatch: pytest.MonkeyPatch, *, mute_s: float) -> AsyncIterator[Connection]:
    """An open connection."""
    monkeypatch.setattr("eddyline.ingest.nats.connection.MUTE_S", mute_s)
    monkeypatch.setattr("eddyline.ingest.nats.connection.RECONNECT_S_MAX", 0.1)
    access = nats_access(IngestSettings(nats_url=url))
    connection = Connection(access, name="test", clock=SystemClock(), rng=Random(1), on_change=lambda: None)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(connection.run())
        await asyncio.wait_for(connection.wait_connected(), 5)
        try:
            yield connection
        finally:
            running.cancel()


def server_of(connection: Connection) -> str:
    """Address of the connection's server."""
    url = connection.client.connected_url
    assert url is not None
    return url.geturl()


async def test_server_that_answers_nothing_is_left_for_another(
    kit: BucketKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_nats(tmp_path) as other:
        async with connected(f"{kit.url},{other.url}", monkeypatch, mute_s=0.0) as connection:
            for _ in range(3):
                before, lost = server_of(connection), connection.lost
                connection.note_no_answer()
                await asyncio.wait_for(lost.wait(), 5)
                await asyncio.wait_for(connection.wait_connected(), 5)
                assert server_of(connection) != before


async def test_only_server_and_one_that_answers_now_and_then_are_not_left(
    kit: BucketKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(kit.url, monkeypatch, mute_s=0.0) as connection:
        connection.note_no_answer()
        connection.note_no_answer()
        assert connection.connected
    async with connected(f"{kit.url},{kit.url}", monkeypatch, mute_s=60.0) as connection:
        connection.note_no_answer()
        connection.note_answer()
        monkeypatch.setattr("eddyline.ingest.nats.connection.MUTE_S", 0.001)
        connection.note_no_answer()
        await connection.client.flush()
        assert connection.connected


def replica(active_ms: int, *, current: bool = False, offline: bool = False) -> Json:
    """Another server of a stream, as its leader reports it."""
    return {"name": "n", "current": current, "active": active_ms * 1_000_000} | ({"offline": True} if offline else {})


@pytest.mark.parametrize(
    ("cluster", "believed"),
    [
        (None, True),
        ({"name": "c", "leader": "n0"}, True),
        ({"leader": "n0", "replicas": [replica(10, current=True), replica(20, current=True)]}, True),
        ({"leader": "n0", "replicas": [replica(10, current=True), replica(60_000, offline=True)]}, True),
        ({"leader": "n0", "replicas": [replica(2_000), replica(60_000)]}, True),
        ({"leader": "n0", "replicas": [replica(5_000), replica(60_000)]}, False),
        ({"leader": "n0", "replicas": [replica(0), replica(0)]}, False),
        ({"leader": "n0", "replicas": [replica(10, current=True), *[replica(9_000)] * 3]}, False),
        ({"replicas": [replica(10, current=True), replica(10, current=True), replica(10, current=True)]}, False),
        ({"leader": "", "replicas": []}, False),
    ],
)
def test_stream_is_accepted_only_from_a_leader_with_a_majority(cluster: Json | None, believed: bool) -> None:
    assert has_majority({"cluster": cluster} if cluster is not None else {}) is believed


@pytest.mark.parametrize(
    ("replica", "troubles"),
    [
        ({"name": "n2", "current": True, "active": 5}, []),
        ({"name": "n2", "current": True, "lag": 1_000}, []),
        ({"name": "n2", "current": True, "lag": 1_001}, ["NATS server n2 lags behind the leader, by 1001 operations"]),
        ({"name": "n2", "current": False, "lag": 7}, ["NATS server n2 lags behind the leader, by 7 operations"]),
        ({"name": "n2", "current": False, "offline": True, "lag": 7}, ["NATS server n2 is offline"]),
    ],
)
def test_a_server_that_lags_is_named(replica: Json, troubles: list[str]) -> None:
    fine: Json = {"name": "n3", "current": True}
    assert peer_troubles({"cluster": {"leader": "n1", "replicas": [fine, replica]}}) == troubles


def test_a_server_alone_has_no_others() -> None:
    answers: list[Json] = [{}, {"cluster": {"leader": "n1"}}, {"cluster": {"replicas": [3]}}, {"cluster": None}]
    assert [peer_troubles(answer) for answer in answers] == [[], [], [], []]
