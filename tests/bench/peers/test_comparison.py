"""The lines of a cell: goals and ratios of our first system, `skipped` for an absent peer, `failed` without a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.bench.harness import Figure, Unmeasured
from tests.bench.peers import comparison, servers
from tests.bench.peers.comparison import FAILURES_MAX, P50, PROCESSOR, RATE, Bench, Cell, Samples, System, figures
from tests.bench.peers.load_client import LoadFailed, LoadResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

OURS = System("ours", ("store-own",), "eddyline-stream")
OTHER = System("other", ("store-own",), "eddyline-unary")
PEER = System("peer", ("jetstream",), "jetstream")
CELL = Cell("cell", ("append",), (OURS, OTHER, PEER), (RATE, PROCESSOR), goals={RATE: 200.0}, rivals={"peer": 0.5})


def result(records: int, *, p50_us: float = 0.0) -> LoadResult:
    return LoadResult(records, 2.0, p50_us, 0.0, server_s=0.1, client_s=0.1, busiest_thread=0.5)


def samples(*records: int) -> Samples:
    return Samples([result(count) for count in records])


def lines(cell: Cell, **seen: Samples) -> dict[str, str]:
    return {figure.name: figure.line() for figure in figures("P0", cell, seen)}


def test_first_system_is_held_against_goal_and_rival() -> None:
    seen = lines(CELL, ours=samples(100, 200, 900), other=samples(100), peer=samples(400))
    assert seen == {
        "cell_ours": "P0 cell_ours value=100 unit=records/s ratio=0.50 target=1 short",
        "cell_ours_processor": "P0 cell_ours_processor value=500 unit=us/record",
        "cell_other": "P0 cell_other value=50.000 unit=records/s",
        "cell_other_processor": "P0 cell_other_processor value=1000 unit=us/record",
        "cell_peer": "P0 cell_peer value=200 unit=records/s",
        "cell_peer_processor": "P0 cell_peer_processor value=250 unit=us/record",
        "cell_ours_to_peer": "P0 cell_ours_to_peer value=100 unit=records/s ratio=0.50 target=0.5 ok",
        "cell_other_to_peer": "P0 cell_other_to_peer value=50.000 unit=records/s ratio=0.25",
    }


def test_latency_is_met_from_below() -> None:
    cell = Cell("cell", ("append",), (OURS, PEER), (P50,), goals={P50: 100.0}, rivals={"peer": 2.0})
    seen = lines(cell, ours=Samples([result(1, p50_us=90)]), peer=Samples([result(1, p50_us=30)]))
    assert seen["cell_ours_p50"].endswith("ratio=0.90 target=1 ok")
    assert seen["cell_ours_to_peer_p50"].endswith("ratio=3.00 target=2 short")


@pytest.mark.parametrize(("failures", "verdict"), [(0, "skipped"), (1, "failed")])
def test_peer_without_figures_is_never_ok(failures: int, verdict: str) -> None:
    absent = Samples(reason='peer is "absent":\nmake peers', failures=failures)
    seen = lines(CELL, ours=samples(100), other=samples(100), peer=absent)
    for name in ("cell_peer", "cell_peer_processor", "cell_ours_to_peer", "cell_other_to_peer"):
        assert seen[name] == f"P0 {name} {verdict} reason=\"peer is 'absent': make peers\""
    assert seen["cell_ours"].endswith("short")


async def test_row_without_its_load_client_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(servers, "BUILD", tmp_path)
    assert await comparison.measure_row("P0", [CELL]) == [
        Unmeasured("P0", "cell", "peerload is absent: make peers (needs Go)")
    ]


def bench(load: Callable[..., Awaitable[LoadResult]], *, turns: int) -> Bench:
    async def pause(_: object) -> None:
        """The servers are no processes."""

    running = {name: servers.RunningServer("127.0.0.1:1", 1) for name in ("store-own", "jetstream")}
    return Bench("P0", running, turns=turns, load=load, pause=pause)


async def test_systems_take_turns_and_the_first_turn_does_not_count() -> None:
    turns: list[str] = []
    dropped: list[str] = []

    async def load(command: str, *words: str) -> LoadResult:
        options = dict(zip(words[::2], words[1::2], strict=True))
        (dropped if command == "drop" else turns).append(f"{options['-system']} {options['-topic']}")
        return result(1_000_000 if len(turns) <= len(CELL.systems) else 200)

    measured = await bench(load, turns=3).measure(CELL)
    ways = ["eddyline-stream", "eddyline-unary", "jetstream"] * 3
    assert turns == dropped == [f"{way} bench-{number}" for number, way in enumerate(ways, 1)]
    assert all(isinstance(figure, Figure) for figure in measured)
    assert {figure.value for figure in measured if isinstance(figure, Figure) and figure.unit == "records/s"} == {100.0}


async def test_system_that_fails_again_has_no_more_turns() -> None:
    calls = 0

    async def load(command: str, *words: str) -> LoadResult:
        nonlocal calls
        if "jetstream" in words and command == "append":
            calls += 1
            raise LoadFailed("no answer")
        return result(200)

    measured = await bench(load, turns=6).measure(CELL)
    assert calls == FAILURES_MAX
    assert Unmeasured("P0", "cell_ours_to_peer", "no answer", failed=True) in measured


def test_wires_of_ours_are_systems_with_goals_and_a_bare_handler_each() -> None:
    both = tuple(System(f"ours_{side}", (f"store-{side}",), "eddyline-stream") for side in ("grpc", "own", "before"))
    bare = tuple(System(f"bare_{side}", (f"bare-{side}",), "eddyline-stream") for side in ("grpc", "own"))
    cell = Cell("cell", ("append",), (*both, *bare, PEER), (RATE,), goals={RATE: 100.0}, rivals={"peer": 2.0})
    counts = {"ours_grpc": 200, "ours_own": 400, "ours_before": 100, "bare_grpc": 400, "bare_own": 1000, "peer": 100}
    seen = lines(cell, **{label: samples(count) for label, count in counts.items()})
    ratios = {name.removeprefix("cell_"): line.partition("ratio=")[2] for name, line in seen.items()}
    assert ratios == {
        "ours_grpc": "1.00 target=1 ok",
        "ours_own": "2.00 target=1 ok",
        "ours_before": "",
        "bare_grpc": "",
        "bare_own": "",
        "peer": "",
        "ours_grpc_to_ours_before": "2.00",
        "ours_grpc_to_bare_grpc": "0.50",
        "ours_grpc_to_peer": "2.00 target=2 ok",
        "ours_own_to_ours_before": "4.00",
        "ours_own_to_bare_own": "0.40",
        "ours_own_to_peer": "4.00 target=2 ok",
    }
