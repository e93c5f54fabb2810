"""P16: what access and telemetry cost: appends and the way from NATS to a subscriber (P1 and P4) with keys, with TLS on
every connection, and with all there is (both, metrics by OTLP, one record in a hundred traced), against the same without.

Two clusters run side by side and are measured in turn, each of the three beside an open one, on each wire; sides:
`tests.bench.sides`. One process differs from the next of its kind by as much as what is looked for here, so `PAIRS` fresh
pairs are measured. Rates on shared cores vary even more, so the row also prints processor time: the store's and the
client's together, since both encrypt.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import nats
from nats.js.api import KeyValueConfig

from eddyline.core.auth.caller_channel import CallerAccess
from eddyline.core.tls.files import ClientTls
from eddyline.v1 import delivery_pb2, delivery_pb2_grpc, log_pb2, log_pb2_grpc, types_pb2
from tests.bench.harness import ROUNDS, Figure, in_turn
from tests.bench.rows.p1_append import BATCHES, RECORDS, TOPIC, columns, create_topic, idle, stream_round, unary_round
from tests.bench.rows.p4_latency import HISTORY, RATES, round_of
from tests.bench.sides import NOT_WORSE_MIN, our_sides
from tests.support.access import Keys, secret_of
from tests.support.certificates import Authority
from tests.support.cluster.process_figures import fine_processor_s
from tests.support.cluster.processes import (
    bare_server,
    delivery_at,
    free_address,
    ingest_process,
    nats_server,
    store_process,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    import grpc
    from nats.aio.client import Client

    from tests.bench.sides import Side

    Key = tuple[Side, str]
    """A cluster of a pair: its side, and its kind."""
    Seen = dict[str, dict[Key, float]]
    """Of one pair, by figure and cluster."""

PAIRS = max(ROUNDS * 3 // 5, 1)
PAIR_ROUNDS = PAIRS
LATENCY_ROUNDS = max(ROUNDS - 1, 1)
PART_MIN = 0.85
PART_MAX = 1.15
TRACE_RATIO = "0.01"
STREAM, UNARY = "append_stream", "append_records"
OPEN, KEYED, TLS, ALL = "open", "keyed", "tls", "all"


class Round(NamedTuple):
    """Records a second, and processor time a record."""

    rate: float
    spent_us: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """One of each role, at its bucket."""

    store: grpc.aio.Channel
    store_pid: int
    delivery: grpc.aio.Channel
    bucket: str

    async def round_of(self, rate: Callable[[], Awaitable[float]]) -> Round:
        """Measure one round of appends."""
        before_s = self._used_s()
        found = await rate()
        return Round(found, (self._used_s() - before_s) / (BATCHES * RECORDS) * 1e6)

    async def p50_ms(self, client: Client, rate: int) -> float:
        """Measure one round of puts."""
        seen = await round_of(client, self.bucket, rate, self.values())
        return seen[len(seen) // 2]

    def _used_s(self) -> float:
        return fine_processor_s(os.getpid()) + fine_processor_s(self.store_pid)

    async def values(self) -> AsyncIterator[bytes]:
        """The records that a watch receives from now on."""
        topic = delivery_pb2.WatchTopic(topic=self.bucket, point=delivery_pb2.START_POINT_TAIL)
        request = delivery_pb2.WatchTopicsRequest(topics=[topic], format=types_pb2.BATCH_FORMAT_COLUMNS)
        async for frame in delivery_pb2_grpc.DeliveryServiceStub(self.delivery).WatchTopics(request):
            if frame.WhichOneof("frame") == "columns":
                yield frame.columns.data.values


def prepared(folder: Path, kind: str, collector: str) -> tuple[CallerAccess, dict[str, str]]:
    """Make the folder, with what the kind asks for in it: what callers show, and the roles' settings."""
    folder.mkdir()
    access, settings = CallerAccess(), dict[str, str]()
    if kind in (KEYED, ALL):
        keys, own = Keys(folder), folder / "roles.key"
        access = keys.add("bench", "read", "write", "admin")
        keys.add("roles", "role")
        own.write_text(secret_of("roles"), encoding="utf-8")
        settings |= {"KEYS_FILE": str(keys.path), "KEY_FILE": str(own)}
    if kind in (TLS, ALL):
        authority = Authority(folder / "certificates")
        role = authority.sign("role")
        settings |= {"TLS_CERT": str(role.certificate), "TLS_KEY": str(role.key)}
        settings |= {"TLS_CA": str(authority.own.certificate)}
        access = replace(access, tls=ClientTls(authority.own.certificate.read_bytes()))
    if kind == ALL:
        settings |= {"OTLP_URL": collector, "TRACE_RATIO": TRACE_RATIO}
    return access, {f"EDDYLINE_COMMON_{name}": value for name, value in settings.items()}


@asynccontextmanager
async def cluster(url: str, folder: Path, key: Key, collector: str) -> AsyncIterator[Cluster]:
    """Bring one up; the bucket of the folder's name is there."""
    side, kind = key
    access, environment = prepared(folder, kind, collector)
    environment |= side.settings
    async with AsyncExitStack() as stack:
        started, store = await stack.enter_async_context(
            store_process(folder / "store", python=side.python, **environment)
        )
        await stack.enter_async_context(
            ingest_process(store, url, folder, folder.name, python=side.python, **environment)
        )
        delivery = free_address()
        await stack.enter_async_context(delivery_at(delivery, store, python=side.python, **environment))
        channels = [await stack.enter_async_context(access.open_channel(address)) for address in (store, delivery)]
        await create_topic(channels[0])
        yield Cluster(channels[0], started.pid, channels[1], folder.name)


async def appends(clusters: Mapping[Key, Cluster]) -> Seen:
    """P1 in all: rates and processor time a record, by kind of append."""
    append = log_pb2.AppendBatch(columns=columns())
    request = log_pb2.AppendRecordsRequest(topic=TOPIC, columns=columns())

    def round_at(cluster: Cluster, call: str) -> Callable[[], Awaitable[Round]]:
        log = log_pb2_grpc.LogServiceStub(cluster.store)
        if call == STREAM:
            return partial(cluster.round_of, partial(stream_round, log, TOPIC, append))
        return partial(cluster.round_of, partial(unary_round, log, request))

    found: Seen = {}
    channels = [cluster.store for cluster in clusters.values()]
    for call in (STREAM, UNARY):
        works = {key: round_at(one, call) for key, one in clusters.items()}
        seen = await in_turn(works, rounds=PAIR_ROUNDS, prepare=partial(idle, channels))
        found[call] = {key: statistics.median(one.rate for one in rounds) for key, rounds in seen.items()}
        found[f"{call}_processor"] = {
            key: statistics.median(one.spent_us for one in rounds) for key, rounds in seen.items()
        }
    return found


async def latencies(client: Client, clusters: Mapping[Key, Cluster]) -> Seen:
    """P4 in all: the p50 in ms by rate."""
    found: Seen = {}
    for rate in RATES:
        works: dict[Key, Callable[[], Awaitable[float]]] = {
            key: partial(one.p50_ms, client, rate) for key, one in clusters.items()
        }
        seen = await in_turn(works, rounds=LATENCY_ROUNDS)
        found[f"p50_at_{rate}"] = {key: statistics.median(rounds) for key, rounds in seen.items()}
    return found


def figures_of(kind: str, pairs: Sequence[Seen]) -> list[Figure]:
    """The median pair's: each side against its open cluster, and against the same cluster before."""
    sides = [side for side, each in next(iter(pairs[0].values())) if each == kind]
    before = next((side for side in sides if side.is_before), None)
    figures = []
    for name in pairs[0]:
        is_rate = name in (STREAM, UNARY)
        goal = PART_MIN if is_rate else PART_MAX
        ratios = [((side, kind), (side, OPEN), "", None if side.is_before else goal) for side in sides]
        if before is not None:
            not_worse = NOT_WORSE_MIN if is_rate else None
            now = [side for side in sides if side is not before]
            ratios += [((side, kind), (before, kind), "_to_before", not_worse) for side in now]
        unit = "records/s" if is_rate else "ms" if name.startswith("p50") else "us/record"
        for key, other, suffix, target in ratios:
            value = statistics.median(pair[name][key] for pair in pairs)
            ratio = statistics.median(pair[name][key] / pair[name][other] for pair in pairs)
            label = f"{kind}_{name}_{key[0].name}{suffix}"
            figures.append(Figure("P16", label, value, unit, ratio, target, at_most=not is_rate))
    return figures


async def costs_of(kind: str, collector: str) -> list[Figure]:
    """The cost of one kind, in new pairs of clusters; the data of a pair is removed with it."""
    pairs = []
    for _ in range(PAIRS):
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = await stack.enter_async_context(nats_server(folder))
            client = await nats.connect(url)
            stack.push_async_callback(client.close)
            clusters: dict[Key, Cluster] = {}
            for key in ((side, each) for side in our_sides() for each in (kind, OPEN)):
                bucket = f"{key[1]}-{key[0].name}"
                await client.jetstream().create_key_value(KeyValueConfig(bucket=bucket, history=HISTORY))
                opened = cluster(url, folder / bucket, key, collector)
                clusters[key] = await stack.enter_async_context(opened)
            pairs.append({**await appends(clusters), **await latencies(client, clusters)})
    return figures_of(kind, pairs)


async def measure() -> list[Figure]:
    """The row's figures."""
    figures: list[Figure] = []
    async with bare_server("tests.bench.baselines.bare_collector") as address:
        for kind in (KEYED, TLS, ALL):
            figures += await costs_of(kind, f"http://{address}")
    return figures
