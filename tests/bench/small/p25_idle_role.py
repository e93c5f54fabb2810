"""P25: an idle role: its memory once it is ready, and the processor time from its start until then.

Each role is started on each wire and, in turn, as it was before: with all imports first (`eager_role`), or the role of the
checkout that `EDDYLINE_BENCH_BEFORE` names. Sides: `tests.bench.sides`. A ratio is to the bound for the role as it is.
`store_with_a_topic` is a store that has imported pyarrow, as it does before it serves topics.
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc

from eddyline.v1 import topic_pb2, topic_pb2_grpc
from tests.bench.harness import Figure, in_turn
from tests.bench.sides import Side, our_sides
from tests.support.cluster.process_figures import MemoryBytes, memory_bytes, processor_s
from tests.support.cluster.processes import free_address, nats_server, process, serving, store_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

EAGER: Final = Side("before", "grpc")
RESIDENT_BYTES_MAX: Final = 80 << 20
START_S_MAX: Final = 1.0
MIB: Final = 1 << 20


class Idle(NamedTuple):
    """A role that is ready: its memory, and the processor time it took until then."""

    memory: MemoryBytes
    start_s: float


async def idle(side: Side, role: str, **settings: str) -> Idle:
    """Start a role, look at it once it is ready, and stop it."""
    address = free_address()
    settings |= {f"EDDYLINE_{role.upper()}_LISTEN": address, **side.settings}
    settings["PYTHONDONTWRITEBYTECODE"] = ""  # a start that compiles is none that an installed role makes
    words = ("tests.bench.baselines.eager_role", role) if side is EAGER else (f"eddyline.{role}",)
    async with process(*words, python=side.python, **settings) as started:
        assert started.stdout is not None
        assert (await started.stdout.readline()).startswith(f"{role} ready at ".encode())
        start_s = processor_s(started.pid)
        await serving(address)
        return Idle(memory_bytes(started.pid), start_s)


def medians(seen: Sequence[Idle]) -> Idle:
    """The median of each figure."""
    memory = MemoryBytes(*(statistics.median(column) for column in zip(*(one.memory for one in seen), strict=True)))
    return Idle(memory, statistics.median(one.start_s for one in seen))


def figures_of(role: str, side: Side, now: Idle, *, is_bounded: bool) -> list[Figure]:
    """The lines of a role; bounds hold for a role as it is."""
    memory = now.memory
    resident, start = (memory.resident / RESIDENT_BYTES_MAX, now.start_s / START_S_MAX) if is_bounded else (None, None)
    bound = 1.0 if is_bounded else None
    return [
        Figure("P25", f"{role}_resident_{side.name}", memory.resident / MIB, "MiB", resident, bound, at_most=True),
        Figure("P25", f"{role}_proportional_{side.name}", memory.proportional / MIB, "MiB"),
        Figure("P25", f"{role}_unique_{side.name}", memory.unique / MIB, "MiB"),
        Figure("P25", f"{role}_start_{side.name}", now.start_s * 1000, "ms", start, bound, at_most=True),
    ]


async def make_topic(directory: Path) -> None:
    """Leave a store's directory with a topic."""
    async with store_server(directory) as address, grpc.aio.insecure_channel(address) as channel:
        topic = topic_pb2.Topic(name="idle", kind=topic_pb2.TOPIC_KIND_LOG)
        await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))


async def measure() -> list[Figure]:
    """The row's figures."""
    sides = our_sides()
    if not any(side.is_before for side in sides):
        sides.append(EAGER)
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        await make_topic(directory / "with_topic")
        async with AsyncExitStack() as stack:
            at_store = {
                "EDDYLINE_COMMON_STORE_ADDRESSES": await stack.enter_async_context(store_server(directory / "s"))
            }
            nats_url = await stack.enter_async_context(nats_server(directory))
            starts: dict[str, tuple[str, dict[str, str]]] = {
                "store": ("store", {"EDDYLINE_STORE_DATA_DIR": str(directory / "empty")}),
                "store_with_a_topic": ("store", {"EDDYLINE_STORE_DATA_DIR": str(directory / "with_topic")}),
                "delivery": ("delivery", at_store),
                "ingest": ("ingest", {**at_store, "EDDYLINE_INGEST_NATS_URL": nats_url}),
            }
            works: dict[tuple[str, Side], Callable[[], Awaitable[Idle]]] = {
                (name, side): partial(idle, side, role, **settings)
                for name, (role, settings) in starts.items()
                for side in sides
            }
            # The warm-up writes the byte code that later starts read.
            seen = await in_turn(works)
    figures = list[Figure]()
    for (name, side), idles in seen.items():
        is_bounded = not side.is_before and name in ("store", "delivery", "ingest")
        figures += figures_of(name, side, medians(idles), is_bounded=is_bounded)
    return figures
