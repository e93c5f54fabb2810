"""The load client of the peer rows on real servers: every kind of load, on ours and on the peers that this machine has."""

from __future__ import annotations

import asyncio

import pytest

from tests.bench.harness import Figure, Unmeasured
from tests.bench.peers.comparison import P50, PROCESSOR, RATE, Cell, System, measure_row
from tests.bench.peers.servers import ROOT, TOPICS_VARIABLE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

NOT_HERE = 77
BUILD_SECONDS_MAX = 280
KEYS = 2_000
STREAM = System("stream", ("store-grpc", "delivery-grpc"), "eddyline-stream", "disk")
UNARY = System("unary", ("store-own",), "eddyline-unary")
PEERS = (
    System("jetstream", ("jetstream",), "jetstream"),
    System("redis", ("redis-everysec",), "redis"),
    System("etcd", ("etcd",), "etcd"),
    System("topics", ("topics",), "topics"),
)
SYSTEMS = (STREAM, UNARY, System("gathered", ("store-own",), "eddyline-gather"), *PEERS)
WATCHED = (STREAM, *PEERS, System("nats_core", ("jetstream",), "nats-core"))
CELLS = (
    Cell("append", ("append", "-in-flight", "4", "-clients", "2", "-seconds", "0.2"), SYSTEMS, (RATE, P50)),
    Cell("flat_out", ("fan-out", "-subscribers", "3", "-records", "40", "-in-flight", "4"), WATCHED, (RATE, P50)),
    Cell("paced", ("fan-out", "-subscribers", "3", "-records", "5", "-rate", "50"), WATCHED, (P50,)),
)
GETS = (
    Cell("get", ("get", "-keys", str(KEYS), "-seconds", "0.2"), SYSTEMS, (RATE, PROCESSOR), topic="kv"),
    Cell(
        "get_many", ("get", "-keys", str(KEYS), "-keys-per-get", "100", "-seconds", "0.2"), SYSTEMS, (RATE,), topic="kv"
    ),
)


async def build() -> None:
    """Build the load client; skip where it cannot be built on this machine."""
    process = await asyncio.create_subprocess_exec(
        ROOT / "tests/bench/peers/build.sh", "load", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(BUILD_SECONDS_MAX):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if process.returncode == NOT_HERE:
        pytest.skip(output.decode().strip().splitlines()[-1])
    assert process.returncode == 0, output.decode()


async def test_each_load_runs_on_every_system_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOPICS_VARIABLE, raising=False)
    await build()
    figures = [*await measure_row("P0", CELLS, turns=1), *await measure_row("P0", GETS, keys=KEYS, turns=1)]
    measured = {figure.name: figure.value for figure in figures if isinstance(figure, Figure)}
    for cell in (*CELLS, *GETS):
        for system in ("stream", "jetstream"):
            for metric in cell.metrics:
                name = f"{cell.name}_{system}{metric.suffix}"
                assert measured[name] > 0 or metric is PROCESSOR, name
    absent = [figure for figure in figures if isinstance(figure, Unmeasured)]
    assert not [figure for figure in absent if figure.failed]
    assert measured["append_gathered"] > 0
    names = {figure.name for figure in absent}
    assert {"append_topics", "append_topics_p50", "append_stream_to_topics", "get_unary_to_topics"} <= names
