"""P25: an idle role: its memory once it is ready, and the processor time from its start until then.

Each role is started `ROUNDS` times as it is and, in turn, as it was before: with all imports first (`eager_role`), or, if
`EDDYLINE_BENCH_BEFORE` names the directory of another checkout, with that checkout's code. A ratio is to the bound for the
role as it is. `store_with_a_topic` is a store that has imported pyarrow, as it does before it serves topics.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc

from eddyline.v1 import topic_pb2, topic_pb2_grpc
from tests.bench.harness import Figure
from tests.support.cluster.process_figures import MemoryBytes, memory_bytes, processor_s
from tests.support.cluster.processes import free_address, nats_server, process, serving, store_server

if TYPE_CHECKING:
    from collections.abc import Sequence

BEFORE: Final = os.environ.get("EDDYLINE_BENCH_BEFORE", "")
SOURCES: Final = ("libs/api", "libs/core", "services/store", "services/ingest", "services/delivery")
BEFORE_PATH: Final = os.pathsep.join(str(Path(BEFORE, source).absolute()) for source in SOURCES)
ROUNDS: Final = 3
RESIDENT_BYTES_MAX: Final = 80 << 20
START_S_MAX: Final = 1.0
MIB: Final = 1 << 20


class Idle(NamedTuple):
    """A role that is ready: its memory, and the processor time it took until then."""

    memory: MemoryBytes
    start_s: float


async def idle(role: str, *, before: bool, **settings: str) -> Idle:
    """Start a role, look at it once it is ready, and stop it."""
    address = free_address()
    settings |= {f"EDDYLINE_{role.upper()}_LISTEN": address, "EDDYLINE_COMMON_LOG_LEVEL": "WARNING"}
    settings["PYTHONDONTWRITEBYTECODE"] = ""  # a start that compiles is none that an installed role makes
    module, words = f"eddyline.{role}", list[str]()
    if before and BEFORE:
        settings["PYTHONPATH"] = BEFORE_PATH
    elif before:
        module, words = "tests.bench.baselines.eager_role", [role]
    async with process(module, *words, **settings) as started:
        assert started.stdout is not None
        assert (await started.stdout.readline()).startswith(f"{role} ready at ".encode())
        start_s = processor_s(started.pid)
        await serving(address)
        return Idle(memory_bytes(started.pid), start_s)


def medians(seen: Sequence[Idle]) -> Idle:
    """The median of each figure."""
    memory = MemoryBytes(*(statistics.median(column) for column in zip(*(one.memory for one in seen), strict=True)))
    return Idle(memory, statistics.median(one.start_s for one in seen))


def figures_of(name: str, now: Idle, *, is_bounded: bool) -> list[Figure]:
    """The lines of a role; bounds hold for a role as it is."""
    memory = now.memory
    resident, start = (memory.resident / RESIDENT_BYTES_MAX, now.start_s / START_S_MAX) if is_bounded else (None, None)
    bound = 1.0 if is_bounded else None
    return [
        Figure("P25", f"{name}_resident", memory.resident / MIB, "MiB", resident, bound, at_most=True),
        Figure("P25", f"{name}_proportional", memory.proportional / MIB, "MiB"),
        Figure("P25", f"{name}_unique", memory.unique / MIB, "MiB"),
        Figure("P25", f"{name}_start", now.start_s * 1000, "ms", start, bound, at_most=True),
    ]


async def make_topic(directory: Path) -> None:
    """Leave a store's directory with a topic."""
    async with store_server(directory) as address, grpc.aio.insecure_channel(address) as channel:
        topic = topic_pb2.Topic(name="idle", kind=topic_pb2.TOPIC_KIND_LOG)
        await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))


async def measure() -> list[Figure]:
    """The row's figures."""
    if BEFORE and not all(map(os.path.isdir, BEFORE_PATH.split(os.pathsep))):
        raise NotADirectoryError(f"EDDYLINE_BENCH_BEFORE={BEFORE} is not a checkout")
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
            seen: dict[tuple[str, bool], list[Idle]] = {
                (name, before): [] for name in starts for before in (False, True)
            }
            # The first start of each writes the byte code that the later ones read.
            for _ in range(ROUNDS + 1):
                for (name, before), idles in seen.items():
                    role, settings = starts[name]
                    idles.append(await idle(role, before=before, **settings))
    figures = list[Figure]()
    for (name, before), idles in seen.items():
        is_bounded = not before and name in ("store", "delivery", "ingest")
        figures += figures_of(f"{name}_before" if before else name, medians(idles[1:]), is_bounded=is_bounded)
    return figures
