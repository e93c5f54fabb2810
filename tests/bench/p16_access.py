"""P16: what access and telemetry cost: appends and the way from NATS to a subscriber (P1 and P4) with keys, with TLS on
every connection, and with all there is (both, metrics by OTLP, one record in a hundred traced), against the same without.

The clusters run side by side and are measured in turn, each of the three beside the open one. Rates on cores that others use
too swing more than what is looked for here, so appends are told by processor time as well: the store's and the client's
together, which both encrypt.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import nats
from nats.js.api import KeyValueConfig

from eddyline.core.caller_channel import CallerAccess
from eddyline.core.tls import ClientTls
from eddyline.v1 import delivery_pb2, delivery_pb2_grpc, log_pb2, log_pb2_grpc, types_pb2
from tests.bench.harness import Figure, alternate, until_idle
from tests.bench.p1_append import BATCHES, RECORDS, TOPIC, columns, create_topic, stream_round, unary_round
from tests.bench.p4_latency import HISTORY, RATES, round_of
from tests.support.access import Keys, secret_of
from tests.support.certificates import Authority
from tests.support.process_figures import processor_s
from tests.support.processes import delivery_at, free_address, ingest_process, nats_server, store_process
from tests.support.trace_collector import trace_collector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import grpc
    from nats.aio.client import Client

LATENCY_ROUNDS = 5
PART_MIN = 0.85
PART_MAX = 1.15
TRACE_RATIO = "0.01"
OPEN, KEYED, TLS, ALL = "open", "keyed", "tls", "all"


@dataclass(frozen=True, slots=True)
class Cluster:
    """One of each role, and what its callers show."""

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
        """What a watch brings from now on."""
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
async def cluster(url: str, folder: Path, kind: str, collector: str) -> AsyncIterator[Cluster]:
    """Bring one up; its bucket is there."""
    access, environment = prepared(folder, kind, collector)
    async with AsyncExitStack() as stack:
        started, store = await stack.enter_async_context(store_process(folder / "store", **environment))
        await stack.enter_async_context(ingest_process(store, url, folder, kind, **environment))
        delivery = free_address()
        await stack.enter_async_context(delivery_at(delivery, store, **environment))
        channels = [await stack.enter_async_context(access.open_channel(address)) for address in (store, delivery)]
        await create_topic(channels[0])
        yield Cluster(channels[0], started.pid, channels[1], kind)


async def appends(ours: Cluster, other: Cluster) -> list[Figure]:
    """P1 in both."""
    append = log_pb2.AppendBatch(columns=columns())
    request = log_pb2.AppendRecordsRequest(topic=TOPIC, columns=columns())

    def rounds(cluster: Cluster, kind: str) -> Callable[[], Awaitable[float]]:
        log = log_pb2_grpc.LogServiceStub(cluster.store)
        if kind == "append_stream":
            return partial(cluster.round_of, kind, partial(stream_round, log, TOPIC, append))
        return partial(cluster.round_of, kind, partial(unary_round, log, request))

    async def idle() -> None:
        for one in (ours, other):
            await until_idle(one.store)

    figures = []
    for kind in ("append_stream", "append_records"):
        both = rounds(ours, kind), rounds(other, kind)
        rate, other_rate = await alternate(*both, prepare=idle)
        # the first of each is the warm-up's
        spent, other_spent = (statistics.median(one.spent_us.pop(kind)[1:]) for one in (ours, other))
        name = f"{ours.bucket}_{kind}"
        figures += [
            Figure("P16", name, rate, "records/s", rate / other_rate, PART_MIN),
            Figure("P16", f"{name}_processor", spent, "us/record", spent / other_spent, PART_MAX, at_most=True),
        ]
    return figures


async def latencies(client: Client, ours: Cluster, other: Cluster) -> list[Figure]:
    """P4 in both."""
    figures = []
    for rate in RATES:
        medians: dict[str, list[float]] = {ours.bucket: [], other.bucket: []}
        for _ in range(LATENCY_ROUNDS):
            for one in (ours, other):
                seen = await round_of(client, one.bucket, rate, one.values())
                medians[one.bucket].append(seen[len(seen) // 2])
        p50, other_p50 = statistics.median(medians[ours.bucket]), statistics.median(medians[other.bucket])
        name = f"{ours.bucket}_p50_at_{rate}"
        figures.append(Figure("P16", name, p50, "ms", p50 / other_p50, PART_MAX, at_most=True))
    return figures


async def measure() -> list[Figure]:
    """The row's figures."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(nats_server(folder))
            collector = await stack.enter_async_context(trace_collector())
            client = await nats.connect(url)
            stack.push_async_callback(client.close)
            for bucket in (OPEN, KEYED, TLS, ALL):
                await client.jetstream().create_key_value(KeyValueConfig(bucket=bucket, history=HISTORY))
            other = await stack.enter_async_context(cluster(url, folder / OPEN, OPEN, ""))
            for kind in (KEYED, TLS, ALL):
                async with cluster(url, folder / kind, kind, collector.url) as ours:
                    figures += await appends(ours, other)
                    figures += await latencies(client, ours, other)
    return figures
