"""P22: single records of 100 bytes to 10, 100 and 1 000 subscribers on both wires, without peers.

A store, and a delivery on each wire, which take turns; each subscriber has its connection. Flat out: one AppendStream with
8 in flight. Paced: 5 000 deliveries a second; the latency is from before the append to a frame at a subscriber. Readers
(`fan_readers`) speak HTTP/2 by hand, so that they take little of what is measured: processor time of delivery, and of store
and delivery together. Memory is what a subscriber's connection and stream take of delivery. `EDDYLINE_BENCH_BEFORE`, the
Python of another checkout, adds its delivery on the own wire.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc

from eddyline.v1 import log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.bench.harness import Figure
from tests.bench.sides import our_sides
from tests.bench.small.fan_readers import now_stamp
from tests.support.cluster.process_figures import fine_processor_s, resident_bytes
from tests.support.cluster.processes import free_address, process, serving, store_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROUNDS: Final = int(os.environ.get("EDDYLINE_BENCH_ROUNDS", "3"))
"""After a first one, which does not count."""
IN_FLIGHT: Final = 8
RECORD_BYTES: Final = 100
DELIVERIES_PER_S: Final = 5_000
PACED_S: Final = 2
FLAT_RECORDS: Final = {10: 4_000, 100: 1_000, 1_000: 100}
ROUND_S_MAX: Final = 120
FLAT_RATE_MIN: Final = 60_000.0
FLAT_PROCESSOR_US_MAX: Final = 20.0
PACED_PROCESSOR_US_MAX: Final = 80.0
PACED_P50_MS_MAX: Final = 10.0
TO_GRPC_MAX: Final = 0.6
JUDGED: Final = 100
"""Subscribers of the cells with goals, which are for the own wire."""


class Round(NamedTuple):
    """One round. Processor time in us a delivery."""

    rate: float
    p50_ms: float
    delivery_us: float
    both_us: float
    bytes_held: float


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery's process; the store is the same for all."""

    name: str
    pid: int
    address: str


class Bench:
    """A store, the deliveries, and who appends."""

    def __init__(self, channel: grpc.aio.Channel, store_pid: int, deliveries: list[Delivery]) -> None:
        self._channel = channel
        self._store_pid = store_pid
        self.deliveries = deliveries
        self._topics = 0

    async def round(self, delivery: Delivery, subscribers: int, records: int, rate: int) -> Round:
        """Deliver `records` to each subscriber; `rate` a second, 0 = flat out."""
        self._topics += 1
        name = f"fan-{self._topics}"
        config = topic_pb2.TopicConfig(durability=topic_pb2.DURABILITY_DISK)
        topic = topic_pb2.Topic(name=name, kind=topic_pb2.TOPIC_KIND_LOG, config=config)
        topics = topic_pb2_grpc.TopicServiceStub(self._channel)
        await topics.CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        before = resident_bytes(delivery.pid)
        arguments = (delivery.address, name, str(subscribers), str(records))
        async with asyncio.timeout(ROUND_S_MAX), process("tests.bench.small.fan_readers", *arguments) as readers:
            assert readers.stdout is not None
            assert await readers.stdout.readline() == b"ready\n"
            held = (resident_bytes(delivery.pid) - before) / subscribers
            delivery_s, store_s = fine_processor_s(delivery.pid), fine_processor_s(self._store_pid)
            await self._append(name, records, rate)
            told = json.loads(await readers.stdout.readline())
            delivery_s = fine_processor_s(delivery.pid) - delivery_s
            store_s = fine_processor_s(self._store_pid) - store_s
        await topics.DeleteTopic(topic_pb2.DeleteTopicRequest(topic=name))
        count = records * subscribers
        both_us = (delivery_s + store_s) / count * 1e6
        return Round(count / told["seconds"], told["p50_ms"], delivery_s / count * 1e6, both_us, held)

    async def _append(self, topic: str, records: int, rate: int) -> None:
        slots = asyncio.Semaphore(IN_FLIGHT)
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        async def steps() -> AsyncIterator[log_pb2.AppendStreamRequest]:
            yield log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic=topic))
            for number in range(records):
                if rate:
                    await asyncio.sleep(began_s + number / rate - loop.time())
                else:
                    await slots.acquire()
                rows = [types_pb2.Record(data=now_stamp() + bytes(RECORD_BYTES - 8))]
                batch = log_pb2.AppendBatch(rows=types_pb2.RecordBatch(records=rows))
                yield log_pb2.AppendStreamRequest(append=batch)

        async for _ in log_pb2_grpc.LogServiceStub(self._channel).AppendStream(steps()):
            slots.release()


def figures(cell: str, rounds: dict[str, list[Round]], *, is_flat: bool, is_judged: bool) -> list[Figure]:
    """The lines of one cell: each delivery's, and the own wire's processor time against grpc's."""
    median = {
        name: Round(*(statistics.median(column) for column in zip(*runs, strict=True))) for name, runs in rounds.items()
    }
    lines: list[Figure] = []
    for name, of in median.items():
        goals = is_judged and name == "own"
        if is_flat:
            ratio = of.rate / FLAT_RATE_MIN if goals else None
            lines.append(Figure("P22", f"{cell}_{name}", of.rate, "deliveries/s", ratio, 1.0 if goals else None))
        else:
            ratio = of.p50_ms / PACED_P50_MS_MAX if goals else None
            lines.append(
                Figure("P22", f"{cell}_{name}_p50", of.p50_ms, "ms", ratio, 1.0 if goals else None, at_most=True)
            )
        us_max = FLAT_PROCESSOR_US_MAX if is_flat else PACED_PROCESSOR_US_MAX
        ratio = of.both_us / us_max if goals else None
        both = Figure(
            "P22", f"{cell}_{name}_both", of.both_us, "us/delivery", ratio, 1.0 if goals else None, at_most=True
        )
        to_grpc = of.delivery_us / median["grpc"].delivery_us if name == "own" and "grpc" in median else None
        target = None if to_grpc is None else TO_GRPC_MAX
        lines += [
            Figure("P22", f"{cell}_{name}_delivery", of.delivery_us, "us/delivery", to_grpc, target, at_most=True),
            both,
        ]
    return lines


async def measure() -> list[Figure]:
    """The row's figures."""
    lines: list[Figure] = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store, address = await stack.enter_async_context(store_process(folder / "store"))
        deliveries = []
        for side in our_sides():
            settings = {"EDDYLINE_COMMON_STORE_ADDRESSES": address, **side.settings}
            settings["EDDYLINE_DELIVERY_LISTEN"] = listen = free_address()
            started = await stack.enter_async_context(process("eddyline.delivery", python=side.python, **settings))
            await serving(listen)
            deliveries.append(Delivery(side.name, started.pid, listen))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        bench = Bench(channel, store.pid, deliveries)
        for subscribers, flat_records in FLAT_RECORDS.items():
            rate = DELIVERIES_PER_S // subscribers
            for cell, records, pace in (("flat_out", flat_records, 0), ("paced", rate * PACED_S, rate)):
                rounds: dict[str, list[Round]] = {one.name: [] for one in deliveries}
                for number in range(ROUNDS + 1):
                    for one in deliveries:
                        seen = await bench.round(one, subscribers, records, pace)
                        if number:
                            rounds[one.name].append(seen)
                        elif subscribers == max(FLAT_RECORDS) and not pace:  # later ones reuse what the first one freed
                            lines.append(Figure("P22", f"stream_of_{subscribers}_{one.name}", seen.bytes_held, "bytes"))
                lines += figures(f"{cell}_{subscribers}", rounds, is_flat=not pace, is_judged=subscribers == JUDGED)
    return lines
