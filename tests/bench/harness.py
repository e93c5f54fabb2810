"""How a row is measured and told: rounds of ours and of the baseline in turn, medians, one line a machine can read.

A figure counts only as a ratio to something measured in the same run, since machines are shared. Each row returns its
`Figure`s; the command prints them and writes them, with the machine, to `tests/bench/results/<date>.json`.
"""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from eddyline.v1 import cluster_pb2, cluster_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import grpc

Key = TypeVar("Key")
Result = TypeVar("Result")

ROUNDS = int(os.environ.get("EDDYLINE_BENCH_ROUNDS") or 5)
"""Rounds that count."""
SECONDS_USUAL = 2.0
SECONDS = float(os.environ.get("EDDYLINE_BENCH_SECONDS") or SECONDS_USUAL)
"""Of a round's load, where a row's load has a time; `scaled` for counts."""
IDLE_LOOKS = 5
IDLE_LOOK_S = 0.15
"""Longer together than the pause between two rounds of the store's own work."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One result: `value` in `unit`, its ratio to the baseline, and the ratio to reach (None = only shown)."""

    row: str
    name: str
    value: float
    unit: str
    ratio: float | None = None
    target: float | None = None
    at_most: bool = False

    def line(self) -> str:
        """`P1 append_stream value=… unit=… ratio=… target=… ok|short`."""
        parts = [self.row, self.name, f"value={self.value:.0f}" if self.value >= 100 else f"value={self.value:.3f}"]
        parts.append(f"unit={self.unit}")
        if self.ratio is not None:
            parts.append(f"ratio={self.ratio:.2f}" if self.ratio >= 0.1 else f"ratio={self.ratio:.3f}")
        if self.target is not None and self.ratio is not None:
            met = self.ratio <= self.target if self.at_most else self.ratio >= self.target
            parts += [f"target={self.target:g}", "ok" if met else "short"]
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """A figure that a run does not have. Skipped: a peer is absent, and `reason` says how to get it; failed: its error."""

    row: str
    name: str
    reason: str
    failed: bool = False

    def line(self) -> str:
        """`P21 clients_16_etcd skipped reason="…"`; never `ok`."""
        reason = self.reason.replace('"', "'").replace("\n", " ")
        return f'{self.row} {self.name} {"failed" if self.failed else "skipped"} reason="{reason}"'


def scaled(count: int, *, multiple_of: int = 1) -> int:
    """A round's count of appends or calls, which is meant for the usual seconds, for fewer or more of them."""
    return max(round(count * SECONDS / SECONDS_USUAL / multiple_of), 1) * multiple_of


async def nothing() -> None:
    """No preparation."""


async def in_turn(
    works: Mapping[Key, Callable[[], Awaitable[Result]]],
    *,
    rounds: int = ROUNDS,
    prepare: Callable[[], Awaitable[None]] = nothing,
) -> dict[Key, list[Result]]:
    """Run all works `rounds` times in turn, after one warm-up each, `prepare` before each; the results of each.

    Every other round is in reverse order, so that none always follows the same other.
    """
    seen: dict[Key, list[Result]] = {key: [] for key in works}
    for number in range(rounds + 1):
        for key in reversed(list(works)) if number % 2 else works:
            await prepare()
            seen[key].append(await works[key]())
    return {key: results[1:] for key, results in seen.items()}


async def alternate(
    ours: Callable[[], Awaitable[float]],
    baseline: Callable[[], Awaitable[float]],
    *,
    rounds: int = ROUNDS,
    prepare: Callable[[], Awaitable[None]] = nothing,
) -> tuple[float, float]:
    """Measure both in turn, one warm-up each first, `prepare` before each; their medians."""
    ours_seen, baseline_seen = (await in_turn({0: ours, 1: baseline}, rounds=rounds, prepare=prepare)).values()
    return statistics.median(ours_seen), statistics.median(baseline_seen)


async def until_idle(channel: grpc.aio.Channel) -> None:
    """Wait until a store has caught up with its own work, so that it takes nothing from what is measured next."""
    stub = cluster_pb2_grpc.ClusterServiceStub(channel)
    quiet = 0
    while quiet < IDLE_LOOKS:
        status = (await stub.GetStatus(cluster_pb2.GetStatusRequest())).store
        idle = status.maintenance_stage in (cluster_pb2.MAINTENANCE_STAGE_IDLE, cluster_pb2.MAINTENANCE_STAGE_SCRUB)
        quiet = quiet + 1 if idle else 0
        await asyncio.sleep(IDLE_LOOK_S)


def machine() -> dict[str, str | int]:
    """The machine of the figures."""
    return {
        "cores": os.cpu_count() or 0,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
