"""The lines of a figure on each side, the sides that the environment asks for, and works in turn."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.bench import sides
from tests.bench.harness import in_turn
from tests.bench.sides import Side, bare_sides, our_sides, side_figures

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

GRPC, OWN, BEFORE = Side("grpc", "grpc"), Side("own", "own"), Side("before", "grpc")
BARE_GRPC, BARE_OWN = Side("bare_grpc", "grpc", is_bare=True), Side("bare_own", "own", is_bare=True)


def lines(values: dict[Side, float], *, not_worse: float | None = None) -> list[str]:
    figures = side_figures("P0", "rate", "appends/s", values, target=0.7, not_worse=not_worse)
    return [figure.line() for figure in figures]


def test_each_side_is_held_against_the_bare_handler_of_its_wire() -> None:
    assert lines({GRPC: 90, OWN: 60, BARE_GRPC: 100, BARE_OWN: 120}) == [
        "P0 rate_grpc value=90.000 unit=appends/s ratio=0.90 target=0.7 ok",
        "P0 rate_own value=60.000 unit=appends/s ratio=0.50 target=0.7 short",
        "P0 rate_bare_grpc value=100 unit=appends/s",
        "P0 rate_bare_own value=120 unit=appends/s",
    ]


def test_before_has_no_target_and_is_what_now_is_compared_with() -> None:
    assert lines({GRPC: 90, BEFORE: 60, BARE_GRPC: 100}, not_worse=0.9) == [
        "P0 rate_grpc value=90.000 unit=appends/s ratio=0.90 target=0.7 ok",
        "P0 rate_before value=60.000 unit=appends/s ratio=0.60",
        "P0 rate_bare_grpc value=100 unit=appends/s",
        "P0 rate_grpc_to_before value=90.000 unit=appends/s ratio=1.50 target=0.9 ok",
    ]


def test_row_without_a_baseline_has_values_alone() -> None:
    assert lines({OWN: 60}) == ["P0 rate_own value=60.000 unit=appends/s"]


def test_environment_chooses_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "NARROWED", "")
    monkeypatch.setattr(sides, "BEFORE", sys.executable)
    assert [side.name for side in our_sides()] == ["grpc", "own", "before"]
    assert [side.name for side in bare_sides()] == ["bare_grpc", "bare_own"]
    monkeypatch.setattr(sides, "NARROWED", "own")
    assert [(side.name, side.wire) for side in our_sides()] == [("own", "own"), ("before", "grpc")]
    # before is on grpc.aio, so its ratio needs that baseline too
    assert [side.name for side in bare_sides()] == ["bare_own", "bare_grpc"]
    assert "EDDYLINE_COMMON_WIRE" not in our_sides()[1].settings
    monkeypatch.setattr(sides, "BEFORE", "")
    assert [side.name for side in (*our_sides(), *bare_sides())] == ["own", "bare_own"]


def test_unknown_wire_and_a_checkout_without_python_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sides, "BEFORE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="EDDYLINE_BENCH_BEFORE"):
        our_sides()
    monkeypatch.setattr(sides, "NARROWED", "http3")
    with pytest.raises(ValueError, match="there are grpc and own"):
        our_sides()


async def test_works_take_turns_and_the_first_turn_does_not_count() -> None:
    ran: list[str] = []

    def work_of(name: str) -> Callable[[], Awaitable[int]]:
        async def work() -> int:
            ran.append(name)
            return len(ran)

        return work

    seen = await in_turn({name: work_of(name) for name in "abc"}, rounds=2)
    assert "".join(ran) == "abccbaabc"
    assert seen == {"a": [6, 7], "b": [5, 8], "c": [4, 9]}
