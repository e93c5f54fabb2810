"""The sides of a row: this checkout on each wire, another checkout, and a bare baseline on each wire, all in turn.

A figure has a line for each side: `NAME_grpc`, `NAME_own` and `NAME_before`, each with its ratio to the bare handler on the
same wire, and the baselines' own, `NAME_bare_grpc` and `NAME_bare_own`. `EDDYLINE_BENCH_WIRE` (`grpc` or `own`) narrows a
run to one wire. `EDDYLINE_BENCH_BEFORE`, the Python of another checkout, adds the side `before`, whose roles and client are
that checkout's with the wire that they have by default; `NAME_grpc_to_before` and `NAME_own_to_before` are then ratios of
now to before.
"""

from __future__ import annotations

import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from tests.bench.harness import Figure
from tests.support.cluster.processes import process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    Wire = Literal["grpc", "own"]

WIRES: Final[tuple[Wire, ...]] = ("grpc", "own")
NARROWED: Final = os.environ.get("EDDYLINE_BENCH_WIRE", "")
BEFORE: Final = os.environ.get("EDDYLINE_BENCH_BEFORE", "")
NOT_WORSE_MIN: Final = 0.9
"""Ratio of now to before in rates that counts as not worse: repeated runs of one checkout differ by up to a tenth."""


@dataclass(frozen=True, slots=True)
class Side:
    """Something that is measured. `wire` = whose bare handler it is compared with."""

    name: str
    wire: Wire
    python: str = sys.executable
    is_bare: bool = False

    @property
    def settings(self) -> dict[str, str]:
        """Of its roles, in the environment."""
        own = {} if self.is_before else {"EDDYLINE_COMMON_WIRE": self.wire}
        return {"EDDYLINE_COMMON_LOG_LEVEL": "WARNING", **own}

    @property
    def is_before(self) -> bool:
        """True = of another checkout."""
        return self.name == "before"


class Bare(NamedTuple):
    """A baseline that runs: its process, and its address."""

    pid: int
    address: str


def wires() -> tuple[Wire, ...]:
    """The wires of this run.

    Raises:
        ValueError: `EDDYLINE_BENCH_WIRE` is no wire.
    """
    chosen = tuple(wire for wire in WIRES if NARROWED in ("", wire))
    if not chosen:
        raise ValueError(f"EDDYLINE_BENCH_WIRE={NARROWED}: there are {' and '.join(WIRES)}")
    return chosen


def our_sides() -> list[Side]:
    """This checkout on each wire, and the other checkout if there is one.

    Raises:
        FileNotFoundError: `EDDYLINE_BENCH_BEFORE` is no program.
    """
    sides = [Side(wire, wire) for wire in wires()]
    if BEFORE:
        if not os.access(BEFORE, os.X_OK) or os.path.isdir(BEFORE):
            raise FileNotFoundError(f"EDDYLINE_BENCH_BEFORE={BEFORE} is not the Python of another checkout")
        sides.append(Side("before", "grpc", BEFORE))
    return sides


def bare_sides() -> list[Side]:
    """The baseline on each wire that one of our sides has."""
    return [Side(f"bare_{wire}", wire, is_bare=True) for wire in dict.fromkeys(side.wire for side in our_sides())]


@asynccontextmanager
async def bare_processes(module: str, *arguments: str) -> AsyncIterator[dict[Side, Bare]]:
    """Run a baseline of `tests.bench.baselines` on each wire; it gets the wire as first argument and prints its port."""
    async with AsyncExitStack() as stack:
        running = {}
        for side in bare_sides():
            started = await stack.enter_async_context(process(module, side.wire, *arguments))
            assert started.stdout is not None
            running[side] = Bare(started.pid, f"127.0.0.1:{int(await started.stdout.readline())}")
        yield running


def side_figures(
    row: str,
    name: str,
    unit: str,
    values: Mapping[Side, float],
    *,
    target: float | None = None,
    at_most: bool = False,
    not_worse: float | None = None,
) -> list[Figure]:
    """The lines of one figure. `target` = of a ratio to the bare handler; `not_worse` = of a ratio to before."""
    bare = {side.wire: value for side, value in values.items() if side.is_bare}
    before = next((value for side, value in values.items() if side.is_before), None)
    figures = []
    for side, value in values.items():
        ratio = None if side.is_bare or side.wire not in bare else value / bare[side.wire]
        goal = None if side.is_before else target
        figures.append(Figure(row, f"{name}_{side.name}", value, unit, ratio, goal, at_most=at_most))
    if before is not None:
        for side, value in values.items():
            if not side.is_bare and not side.is_before:
                label = f"{name}_{side.name}_to_before"
                figures.append(Figure(row, label, value, unit, value / before, not_worse, at_most=at_most))
    return figures
