"""P24: the Python client with `Record`s, against raw stubs that send ready columns and do not look at records.

Durable appends (FSYNC, LOG topic) of 1 000 records of a key and 100 bytes: `append` from 8 callers and `append_stream`
with 8 in flight; a watch whose reader touches each row; the same stream and watch by the blocking client; and one
record at a time. Each client is a process (`client_loads`), at roles of its side (`tests.bench.sides`); `bare_grpc` and
`bare_own` are the raw stubs at roles on that wire. Rates are those of client and roles on the same cores; `_processor` is
the processor time of the client's process alone.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import grpc

from tests.bench.harness import Figure, in_turn
from tests.bench.rows.p1_append import IN_FLIGHT, OPTIONS, create_topic, idle
from tests.bench.sides import bare_sides, our_sides, side_figures
from tests.support.cluster.processes import delivery_at, free_address, store_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.bench.sides import Side

RATE_TARGET = 400_000
LONE_RATIO_MAX = 1.3
RAW = {
    "append": "append_raw",
    "append_stream": "append_stream_raw",
    "watch": "watch_raw",
    "blocking_append_stream": "append_stream_raw",
    "blocking_watch": "watch_raw",
    "lone_append": "lone_append_raw",
}
"""By load, that of the raw stubs."""
LABELS = {"append": f"append_{IN_FLIGHT}_callers"}


class Round(NamedTuple):
    """Records a second, seconds of the client's processor time a million records, and of lone appends the p50."""

    rate: float
    processor_s: float
    p50_us: float


@dataclass(frozen=True, slots=True)
class Loader:
    """A process of `client_loads`, and a channel to its store."""

    process: asyncio.subprocess.Process
    store: grpc.aio.Channel

    async def run(self, load: str) -> Round:
        """Run one round of a load."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{load}\n".encode())
        return Round(**json.loads(await self.process.stdout.readline()))


@asynccontextmanager
async def loader(side: Side, directory: Path) -> AsyncIterator[Loader]:
    """A store with the topic, a delivery, and the client of a side."""
    delivery = free_address()
    settings = {**side.settings, "EDDYLINE_COMMON_DELIVERY_ADDRESSES": delivery}
    async with (
        store_process(directory / side.name, python=side.python, **settings) as (_, store),
        delivery_at(delivery, store, python=side.python, **settings),
        grpc.aio.insecure_channel(store, options=OPTIONS) as channel,
    ):
        await create_topic(channel)
        pipe, words = asyncio.subprocess.PIPE, ("-m", "tests.bench.small.client_loads", store, delivery)
        process = await asyncio.create_subprocess_exec(side.python, *words, stdin=pipe, stdout=pipe)
        assert process.stdin is not None
        try:
            yield Loader(process, channel)
        finally:
            process.stdin.close()
            await process.wait()


async def measure() -> list[Figure]:
    """The row's figures: medians over the rounds, which are taken in turn."""
    figures: list[Figure] = []
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        loaders = {side: await stack.enter_async_context(loader(side, directory)) for side in our_sides()}
        stores = [one.store for one in loaders.values()]
        for load, raw in RAW.items():
            works: dict[Side, Callable[[], Awaitable[Round]]] = {
                side: partial(one.run, load) for side, one in loaders.items()
            }
            for bare in bare_sides():
                at = next(one for side, one in loaders.items() if side.wire == bare.wire)
                works[bare] = partial(at.run, raw)
            seen = await in_turn(works, prepare=partial(idle, stores))
            figures += _figures(load, seen)
    return figures


def _figures(load: str, seen: dict[Side, list[Round]]) -> list[Figure]:
    rate, processor_s, p50 = (
        {side: statistics.median(one[column] for one in rounds) for side, rounds in seen.items()} for column in range(3)
    )
    name = LABELS.get(load, load)
    if load == "lone_append":
        figures = side_figures("P24", f"{name}_p50", "us", p50, target=LONE_RATIO_MAX, at_most=True)
    else:
        goals = {side: value for side, value in rate.items() if not side.is_bare and not side.is_before}
        figures = side_figures("P24", name, "records/s", rate)
        figures += [
            Figure("P24", f"{name}_goal_{side.name}", value, "records/s", value / RATE_TARGET, 1)
            for side, value in goals.items()
        ]
    return [*figures, *side_figures("P24", f"{name}_processor", "s/M", processor_s, at_most=True)]
