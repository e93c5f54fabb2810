"""Cells of the peer rows: the same load on each system in turn, medians, and one line a figure.

A cell is one load. Each turn runs it on every system once (A B C A B C), so that all of them see the same state of the
machine; the first turn warms up and does not count. A peer that is absent has a line `skipped` with the way to get it; a
peer whose every run failed has a line `failed`. Neither is ever `ok`.

*Lines:* `CELL_SYSTEM[_METRIC]` is a system's own figure, for our first system on each wire with its ratio to the goal;
`CELL_OURS_to_PEER[_METRIC]` is our figure with its ratio to a peer's for the cell's first metric, and for all of them to a
bare handler on the same wire and to another checkout.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.bench.harness import ROUNDS, Figure, Unmeasured
from tests.bench.harness import SECONDS as LOAD_SECONDS
from tests.bench.peers.load_client import LoadFailed, run_load
from tests.bench.peers.servers import Absent, open_servers, program, rest
from tests.bench.sides import our_sides

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from tests.bench.peers.load_client import LoadResult
    from tests.bench.peers.servers import RunningServer

TURNS: Final = ROUNDS + 1
SECONDS: Final = f"{LOAD_SECONDS:g}"
"""Of one run of appends or gets."""
BEFORE_SIDE: Final = "before"
FAILURES_MAX: Final = 2
"""Failed runs after which a system has no more turns in a cell: a run without an answer takes two minutes."""


@dataclass(frozen=True, slots=True)
class System:
    """A way to use a server: `servers` = ours or a peer's, the first one gets the load; `client` = its name for peerload."""

    label: str
    servers: tuple[str, ...]
    client: str
    durability: str = "fsync"

    @property
    def is_ours(self) -> bool:
        """True = Eddyline."""
        return self.servers[0].startswith("store-")

    @property
    def is_bare(self) -> bool:
        """True = a bare handler."""
        return self.servers[0].startswith("bare-")

    @property
    def side(self) -> str:
        """Of ours and of a bare handler: `own`, `grpc`, or `before`."""
        return self.servers[0].partition("-")[2] if self.is_ours or self.is_bare else ""


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a run. `suffix` = of its lines' names; empty for the rate."""

    suffix: str
    unit: str
    at_most: bool
    value: Callable[[LoadResult], float]


RATE: Final = Metric("", "records/s", at_most=False, value=lambda run: run.records / run.seconds)
P50: Final = Metric("_p50", "us", at_most=True, value=lambda run: run.p50_us)
P99: Final = Metric("_p99", "us", at_most=True, value=lambda run: run.p99_us)
PROCESSOR: Final = Metric("_processor", "us/record", at_most=True, value=lambda run: run.server_s / run.records * 1e6)
"""Of all servers of the system together, the load client not included."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One load. `words` = command and options of peerload; `systems` = ours first.

    `goals` = values that our first system on each wire should reach; `rivals` = by peer the ratio to reach, of its first
    metric to the peer's. `topic` = a topic that exists; empty = a new one for each run, deleted after it.
    """

    name: str
    words: tuple[str, ...]
    systems: tuple[System, ...]
    metrics: tuple[Metric, ...]
    goals: Mapping[Metric, float] = field(default_factory=dict)
    rivals: Mapping[str, float] = field(default_factory=dict)
    topic: str = ""


@dataclass(slots=True)
class Samples:
    """Runs of one system in one cell. `reason` = why the system is absent, or the error of its last failed run."""

    runs: list[LoadResult] = field(default_factory=list)
    reason: str = ""
    failures: int = 0

    @property
    def is_over(self) -> bool:
        """True = the system has no turn: it is absent, or it failed too often."""
        return self.failures >= FAILURES_MAX if self.failures else bool(self.reason)

    def median(self, metric: Metric) -> float | None:
        """Median over the turns that count; None = there is no figure."""
        return statistics.median(map(metric.value, self.runs)) if self.runs else None

    def unmeasured(self, row: str, name: str) -> Unmeasured:
        """The line in place of a figure."""
        return Unmeasured(row, name, self.reason, failed=self.failures > 0)


def our_systems(
    label: str, client: str, *roles: str, durability: str = "fsync", with_before: bool = False
) -> tuple[System, ...]:
    """One way to use our roles on each wire of the run, and at the other checkout if `with_before` and there is one."""
    return tuple(
        System(f"{label}_{side.name}", tuple(f"{role}-{side.name}" for role in roles), client, durability)
        for side in our_sides()
        if with_before or not side.is_before
    )


class Bench:
    """The servers of a row. `turns` = runs of each system in each cell; the first one does not count, unless it is alone.

    `load` runs one command of the load client; `pause` waits before it until the servers are idle.
    """

    def __init__(
        self,
        row: str,
        running: Mapping[str, RunningServer],
        *,
        turns: int = TURNS,
        load: Callable[..., Awaitable[LoadResult]] = run_load,
        pause: Callable[[Iterable[RunningServer]], Awaitable[None]] = rest,
    ) -> None:
        self._row = row
        self._running = running
        self._turns = turns
        self._load = load
        self._pause = pause
        self._topics = 0
        self._unfilled: dict[str, str] = {}

    async def fill(self, systems: Sequence[System], topic: str, *words: str) -> None:
        """Put the keys of `topic` on each system that runs; a system that fails has its error in each of its cells."""
        for system in systems:
            if all(name in self._running for name in system.servers):
                try:
                    await self._load("fill", *self._common(system, topic), *words)
                except LoadFailed as error:
                    self._unfilled[system.label] = str(error)

    async def measure(self, cell: Cell) -> list[Figure | Unmeasured]:
        """Run one cell on all its systems, in turns."""
        seen = {system.label: self._samples(system) for system in cell.systems}
        for turn in range(self._turns):
            for system in cell.systems:
                samples = seen[system.label]
                if samples.is_over:
                    continue
                try:
                    run = await self._run(cell, system)
                except LoadFailed as error:
                    samples.failures, samples.reason = samples.failures + 1, str(error)
                else:
                    if turn or self._turns == 1:
                        samples.runs.append(run)
        return list(figures(self._row, cell, seen))

    def _samples(self, system: System) -> Samples:
        for name in system.servers:
            try:
                program(name)
            except Absent as absent:
                return Samples(reason=str(absent))
        if system.label in self._unfilled:
            return Samples(reason=self._unfilled[system.label], failures=FAILURES_MAX)
        return Samples()

    def _common(self, system: System, topic: str) -> list[str]:
        servers = [self._running[name] for name in system.servers]
        words = ["-system", system.client, "-address", servers[0].address, "-delivery", servers[-1].address]
        words += ["-topic", topic, "-durability", system.durability]
        return [*words, "-pids", ",".join(str(server.pid) for server in servers)]

    async def _run(self, cell: Cell, system: System) -> LoadResult:
        self._topics += 1
        topic = cell.topic or f"bench-{self._topics}"
        command, *options = cell.words
        await self._pause(self._running.values())
        try:
            return await self._load(command, *self._common(system, topic), *options)
        finally:
            if not cell.topic:
                await self._load("drop", *self._common(system, topic))


def figures(row: str, cell: Cell, seen: Mapping[str, Samples]) -> Iterator[Figure | Unmeasured]:
    """The lines of one cell."""
    ours = [system for system in cell.systems if system.is_ours and system.side != BEFORE_SIDE]
    firsts = {system.side: system for system in reversed(ours)}.values()
    for system in cell.systems:
        samples = seen[system.label]
        for metric in cell.metrics:
            name = f"{cell.name}_{system.label}{metric.suffix}"
            value = samples.median(metric)
            if value is None:
                yield samples.unmeasured(row, name)
                continue
            goal = cell.goals.get(metric) if system in firsts else None
            if goal is None:
                yield Figure(row, name, value, metric.unit)
            else:
                yield Figure(row, name, value, metric.unit, value / goal, 1.0, at_most=metric.at_most)
    for system in ours:
        for peer in cell.systems:
            target = cell.rivals.get(peer.label) if system in firsts else None
            for metric in _compared(cell, system, peer):
                yield _ratio(row, cell, system, peer, metric, seen=seen, target=target)


def _compared(cell: Cell, system: System, peer: System) -> tuple[Metric, ...]:
    """The metrics of `system` that have a ratio to those of `peer`."""
    if peer.is_bare:
        return cell.metrics if peer.side == system.side else ()
    if peer.is_ours:
        is_before = peer.side == BEFORE_SIDE and peer.client == system.client
        return cell.metrics if is_before else ()
    return cell.metrics[:1]


def _ratio(
    row: str,
    cell: Cell,
    system: System,
    peer: System,
    metric: Metric,
    *,
    seen: Mapping[str, Samples],
    target: float | None,
) -> Figure | Unmeasured:
    """The line of one of our systems against one other."""
    name = f"{cell.name}_{system.label}_to_{peer.label}{metric.suffix}"
    value, other = seen[system.label].median(metric), seen[peer.label].median(metric)
    if other is None:
        return seen[peer.label].unmeasured(row, name)
    if value is None:
        return seen[system.label].unmeasured(row, name)
    return Figure(row, name, value, metric.unit, value / other, target, at_most=metric.at_most)


async def measure_row(
    row: str, cells: Sequence[Cell], *, keys: int = 0, turns: int = TURNS
) -> list[Figure | Unmeasured]:
    """Start the servers of all cells, measure each cell, and stop them. `keys` = those that the cells' topic gets first."""
    try:
        program("peerload")
    except Absent as absent:
        return [Unmeasured(row, cell.name, str(absent)) for cell in cells]
    names = dict.fromkeys(name for cell in cells for system in cell.systems for name in system.servers)
    measured: list[Figure | Unmeasured] = []
    with tempfile.TemporaryDirectory() as directory:
        async with open_servers(names, Path(directory)) as running:
            bench = Bench(row, running, turns=turns)
            if keys:
                await bench.fill(cells[0].systems, cells[0].topic, "-keys", str(keys))
            for cell in cells:
                measured += await bench.measure(cell)
    return measured
