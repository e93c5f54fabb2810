"""P16: what access and telemetry cost: appends and the way from NATS to a subscriber (P1 and P4) with keys, with TLS on
every connection, and with all there is (both, metrics by OTLP, one record in a hundred traced), against the same without.

Two clusters run side by side and are measured in turn, each of the three beside an open one. One process differs from the
next of its kind by as much as what is looked for here, so `PAIRS` fresh pairs are measured. Rates on shared cores vary even
more, so the row also prints processor time: the store's and the client's together, since both encrypt.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import nats
from nats.js.api import KeyValueConfig

from eddyline.core.auth.caller_channel import CallerAccess
from eddyline.core.tls.files import ClientTls
from eddyline.v1 import delivery_pb2, delivery_pb2_grpc, log_pb2, log_pb2_grpc, types_pb2
from tests.bench.harness import Figure, alternate, until_idle
from tests.bench.rows.p1_append import BATCHES, RECORDS, TOPIC, columns, create_topic, stream_round, unary_round
from tests.bench.rows.p4_latency import HISTORY, RATES, round_of
from tests.support.access import Keys, secret_of
from tests.support.certificates import Authority
from tests.support.cluster.process_figures import processor_s
from tests.support.cluster.processes import (
    bare_server,
    delivery_at,
    free_address,
    ingest_process,
    nats_server,
    store_process,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    import grpc
    from nats.aio.client import Client

    Delivered = dict[int, list[tuple[float, float]]]

PAIRS = 3
PAIR_ROUNDS = 3
LATENCY_ROUNDS = 4
PART_MIN = 0.85
PART_MAX = 1.15
TRACE_RATIO = "0.01"
STREAM, UNARY = "append_stream", "append_records"
OPEN, KEYED, TLS, ALL = "open", "keyed", "tls", "all"


@dataclass(frozen=True, slots=True)
class Cluster:
    """One of each role, at its bucket."""

    store: grpc.aio.Channel
    store_pid: int
    delivery: grpc.aio.Channel
    bucket: str
    spent_us: dict[str, list[float]] = field(default_factory=dict)
    """Processor time a record, by round, of each kind of append."""

    async def round_of(self, kind: str, rate: Callable[[], Awaitable[float]]) -> float:
        """Records a second of one round; what it spent is added."""
        before_s = self._used_s()
        found = await rate()
        self.spent_us.setdefault(kind, []).append((self._used_s() - before_s) / (BATCHES * RECORDS) * 1e6)
        return found

    def _used_s(self) -> float:
        return processor_s() + processor_s(self.store_pid)

    async def values(self) -> AsyncIterator[bytes]:
        """The records that a watch receives from now on."""
        topic = delivery_pb2.WatchTopic(topic=self.bucket, point=delivery_pb2.START_POINT_TAIL)
        request = delivery_pb2.WatchTopicsRequest(topics=[topic], format=types_pb2.BATCH_FORMAT_COLUMNS)
        async for frame in delivery_pb2_grpc.DeliveryServiceStub(self.delivery).WatchTopics(request):
            if frame.WhichOneof("frame") == "columns":
                yield frame.columns.data.values


class Both(NamedTuple):
    """One pair's: ours, and the open one's."""

    rate: float
    other_rate: float
    spent_us: float
    other_spent_us: float


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
async def cluster(url: str, folder: Path, kind: str, collector: str) -> AsyncIterator[Cluster]:
    """Bring one up; its bucket, of the kind's name, is there."""
    access, environment = prepared(folder, kind, collector)
    async with AsyncExitStack() as stack:
        started, store = await stack.enter_async_context(store_process(folder / "store", **environment))
        await stack.enter_async_context(ingest_process(store, url, folder, kind, **environment))
        delivery = free_address()
        await stack.enter_async_context(delivery_at(delivery, store, **environment))
        channels = [await stack.enter_async_context(access.open_channel(address)) for address in (store, delivery)]
        await create_topic(channels[0])
        yield Cluster(channels[0], started.pid, channels[1], kind)


async def appends(ours: Cluster, other: Cluster) -> dict[str, Both]:
    """P1 in both: rates and processor time a record, by kind of append."""
    append = log_pb2.AppendBatch(columns=columns())
    request = log_pb2.AppendRecordsRequest(topic=TOPIC, columns=columns())

    def rounds(cluster: Cluster, call: str) -> Callable[[], Awaitable[float]]:
        log = log_pb2_grpc.LogServiceStub(cluster.store)
        if call == STREAM:
            return partial(cluster.round_of, call, partial(stream_round, log, TOPIC, append))
        return partial(cluster.round_of, call, partial(unary_round, log, request))

    async def idle() -> None:
        for one in (ours, other):
            await until_idle(one.store)

    found = {}
    for call in (STREAM, UNARY):
        rates = await alternate(rounds(ours, call), rounds(other, call), rounds=PAIR_ROUNDS, prepare=idle)
        # the first of each is the warm-up's
        spent, other_spent = (statistics.median(one.spent_us.pop(call)[1:]) for one in (ours, other))
        found[call] = Both(*rates, spent, other_spent)
    return found


def append_figures(kind: str, pairs: Sequence[dict[str, Both]]) -> list[Figure]:
    """The median pair's."""
    figures = []
    for call in (STREAM, UNARY):
        seen = [pair[call] for pair in pairs]
        rate, spent = statistics.median(one.rate for one in seen), statistics.median(one.spent_us for one in seen)
        rates = statistics.median(one.rate / one.other_rate for one in seen)
        costs = statistics.median(one.spent_us / one.other_spent_us for one in seen)
        figures += [
            Figure("P16", f"{kind}_{call}", rate, "records/s", rates, PART_MIN),
            Figure("P16", f"{kind}_{call}_processor", spent, "us/record", costs, PART_MAX, at_most=True),
        ]
    return figures


async def latencies(client: Client, ours: Cluster, other: Cluster) -> Delivered:
    """P4 in both: medians in ms, ours and the open one's, by rate and round. The order changes from round to round."""
    found: Delivered = {rate: [] for rate in RATES}
    for rate in RATES:
        for number in range(LATENCY_ROUNDS):
            medians = {}
            for one in (other, ours) if number % 2 else (ours, other):
                seen = await round_of(client, one.bucket, rate, one.values())
                medians[one.bucket] = seen[len(seen) // 2]
            found[rate].append((medians[ours.bucket], medians[other.bucket]))
    return found


def latency_figures(kind: str, pairs: Sequence[Delivered]) -> list[Figure]:
    """The median round's, of all pairs."""
    figures = []
    for rate in RATES:
        rounds = [both for pair in pairs for both in pair[rate]]
        p50 = statistics.median(ours for ours, _ in rounds)
        ratio = statistics.median(ours / other for ours, other in rounds)
        figures.append(Figure("P16", f"{kind}_p50_at_{rate}", p50, "ms", ratio, PART_MAX, at_most=True))
    return figures


async def costs_of(kind: str, collector: str) -> list[Figure]:
    """The cost of one kind, in new pairs of clusters; the data of a pair is removed with it."""
    appended, delivered = [], []
    for _ in range(PAIRS):
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = await stack.enter_async_context(nats_server(folder))
            client = await nats.connect(url)
            stack.push_async_callback(client.close)
            pair = []
            for one in (kind, OPEN):
                await client.jetstream().create_key_value(KeyValueConfig(bucket=one, history=HISTORY))
                pair.append(await stack.enter_async_context(cluster(url, folder / one, one, collector)))
            ours, other = pair
            appended.append(await appends(ours, other))
            delivered.append(await latencies(client, ours, other))
    return [*append_figures(kind, appended), *latency_figures(kind, delivered)]


async def measure() -> list[Figure]:
    """The row's figures."""
    figures: list[Figure] = []
    async with bare_server("tests.bench.baselines.bare_collector") as address:
        for kind in (KEYED, TLS, ALL):
            figures += await costs_of(kind, f"http://{address}")
    return figures
