"""P13: fairness: what each band gets of a delivery process that has more to send than it can, and the longest wait.

Store, delivery and subscribers are processes of their own. Each band has `TOPICS_A_BAND` topics by their priority, each with
`SUBSCRIBERS` that take rows. Delivery is stopped (SIGSTOP) while the topics are filled, so that all bands are backlogged
when it continues; then the row calls its GetStatus every `LOOK_S` for the records that its turns gave to each band. Only
intervals count in which a topic of every band waits at both ends, separately before and after the ladder slows B0.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from eddyline.delivery.schedule.scheduler import BANDS, SLOWED, WEIGHTS
from eddyline.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    delivery_pb2,
    log_pb2,
    log_pb2_grpc,
    topic_pb2,
    topic_pb2_grpc,
)
from tests.bench.harness import Figure
from tests.bench.rows.p1_append import RECORDS, columns
from tests.support.cluster.processes import free_address, process, serving, store_server

if TYPE_CHECKING:
    from collections.abc import Sequence

TOPICS_A_BAND: Final = 12
PRIORITIES: Final = (-1000, 0, 250, 500, 1000)
"""The lowest of each band, so that none rises within the time it waits here; of B4 the highest there is."""
SUBSCRIBERS: Final = 4
"""Of each topic, so that sending costs a process more than what comes to it from the store does."""
BATCHES: Final = 16
"""Batches of 1 000 records a topic and round: 1 M records, a second or two of a delivery process."""
ROUNDS: Final = 5
LOOK_S: Final = 0.02
APPENDS_AT_ONCE: Final = 8
END_S: Final = 60.0
ERROR_MAX: Final = 0.1
AGED_S: Final = 10.0
DELIVERY: Final = {"BUFFER_BYTES": str(1 << 30)}


def topic_name(band: int, number: int) -> str:
    return f"b{band}-{number}"


NAMES: Final = tuple(topic_name(band, number) for number in range(TOPICS_A_BAND) for band in range(BANDS))
"""In the order in which they are filled and followed: of each band one after the other."""


class Look:
    """One answer of GetStatus."""

    def __init__(self, status: cluster_pb2.DeliveryStatus) -> None:
        pressure = status.pressure
        self.at_s = time.perf_counter()
        self.served = tuple(pressure.served_record_counts)
        self.is_backlogged = min(pressure.ready_topic_counts, default=0) > 0
        self.is_slowed = pressure.step == cluster_pb2.PRESSURE_STEP_SLOW_B0
        self.is_at_rest = pressure.step == cluster_pb2.PRESSURE_STEP_REST and not sum(pressure.ready_topic_counts)
        self.longest_wait_s = pressure.longest_wait_ms / 1000


async def subscribe(address: str) -> None:
    """Take everything of every topic, each stream of one, and look at nothing. Says when all are level."""
    request = delivery_pb2.WatchTopicsRequest
    async with grpc.aio.insecure_channel(address) as channel, asyncio.TaskGroup() as tasks:
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
        watch = channel.unary_stream("/eddyline.v1.DeliveryService/WatchTopics")
        level = 0

        async def take(name: str) -> None:
            nonlocal level
            first = True
            async for _ in watch(request(topics=[delivery_pb2.WatchTopic(topic=name)]).SerializeToString()):
                if first:
                    first, level = False, level + 1
                    if level == SUBSCRIBERS * len(NAMES):
                        sys.stdout.write("level\n")
                        sys.stdout.flush()

        for name in SUBSCRIBERS * NAMES:
            tasks.create_task(take(name))


async def fill(log: log_pb2_grpc.LogServiceStub) -> None:
    """Append to all topics in turn."""
    requests = [log_pb2.AppendRecordsRequest(topic=name, columns=columns()) for name in NAMES]
    waiting = iter([request for _ in range(BATCHES) for request in requests])

    async def append() -> None:
        for request in waiting:
            await log.AppendRecords(request)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(APPENDS_AT_ONCE):
            tasks.create_task(append())


async def one_round(log: log_pb2_grpc.LogServiceStub, cluster: cluster_pb2_grpc.ClusterServiceStub) -> list[Look]:
    """Fill while delivery stands, let it go on until it is at rest; what was seen."""
    status = await cluster.GetStatus(cluster_pb2.GetStatusRequest())
    looks = [Look(status.delivery)]
    target = status.delivery.delivered_count + SUBSCRIBERS * len(NAMES) * BATCHES * RECORDS
    os.kill(status.pid, signal.SIGSTOP)
    try:
        await fill(log)
    finally:
        os.kill(status.pid, signal.SIGCONT)
    async with asyncio.timeout(END_S):
        while not (looks[-1].is_at_rest and status.delivery.delivered_count >= target):
            await asyncio.sleep(LOOK_S)
            status = await cluster.GetStatus(cluster_pb2.GetStatusRequest())
            looks.append(Look(status.delivery))
    return looks


def shares(rounds: Sequence[Sequence[Look]], *, slowed: bool) -> list[float]:
    """Records of each band while all were backlogged; empty if that was never so."""
    served = [0] * BANDS
    for looks in rounds:
        for before, after in pairwise(looks):
            if all(look.is_backlogged and look.is_slowed is slowed for look in (before, after)):
                served = [sum(of) for of in zip(served, after.served, (-count for count in before.served), strict=True)]
    return [of / sum(served) for of in served] if sum(served) else []


async def measure() -> list[Figure]:
    """Measure the row."""
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(store_server(Path(directory) / "store"))
            address = free_address()
            settings = {f"EDDYLINE_DELIVERY_{name}": value for name, value in DELIVERY.items()}
            settings |= {"EDDYLINE_DELIVERY_LISTEN": address, "EDDYLINE_COMMON_STORE_ADDRESSES": store}
            await stack.enter_async_context(process("eddyline.delivery", **settings))
            await serving(address)
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(store))
            topics = topic_pb2_grpc.TopicServiceStub(channel)
            for name in NAMES:
                config = topic_pb2.TopicConfig(priority=PRIORITIES[int(name[1])])
                topic = topic_pb2.Topic(name=name, kind=topic_pb2.TOPIC_KIND_LOG, config=config)
                await topics.CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
            readers = await stack.enter_async_context(process("tests.bench.rows.p13_fairness", address))
            assert readers.stdout is not None
            assert await readers.stdout.readline() == b"level\n"
            status_channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
            cluster = cluster_pb2_grpc.ClusterServiceStub(status_channel)
            rounds = [await one_round(log_pb2_grpc.LogServiceStub(channel), cluster) for _ in range(ROUNDS)]
    return [*share_figures(rounds, slowed=False), *share_figures(rounds, slowed=True), wait_figure(rounds)]


def share_figures(rounds: Sequence[Sequence[Look]], *, slowed: bool) -> list[Figure]:
    """Each band's share and what it is of its weight's, and how far the worst is off."""
    weights: list[float] = [WEIGHTS[0] / (SLOWED if slowed else 1), *WEIGHTS[1:]]
    name = "slowed_share" if slowed else "share"
    found = shares(rounds, slowed=slowed)
    if not found:
        return [Figure("P13", f"{name}_never_seen", 0, "part")]
    ratios = [share * sum(weights) / weight for share, weight in zip(found, weights, strict=True)]
    figures = [Figure("P13", f"{name}_b{band}", found[band], "part", ratios[band]) for band in reversed(range(BANDS))]
    # B0 slowed has a turn in tens, which is coarse
    worst = max(abs(ratio - 1) for ratio in ratios[1 if slowed else 0 :])
    return [*figures, Figure("P13", f"{name}_error_max", worst, "part", worst, ERROR_MAX, at_most=True)]


def wait_figure(rounds: Sequence[Sequence[Look]]) -> Figure:
    """The longest wait, against 10 s and the time that B4's backlog takes."""
    longest_s = max(look.longest_wait_s for looks in rounds for look in looks)
    served = sum(sum(looks[-1].served) - sum(looks[0].served) for looks in rounds)
    took_s = sum(looks[-1].at_s - looks[1].at_s for looks in rounds)
    bound_s = AGED_S + SUBSCRIBERS * TOPICS_A_BAND * BATCHES * RECORDS / (served / took_s)
    return Figure("P13", "longest_wait", longest_s, "s", longest_s / bound_s, 1.0, at_most=True)


if __name__ == "__main__":
    asyncio.run(subscribe(sys.argv[1]))
