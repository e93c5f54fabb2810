"""`make bench`: measure the rows, print one line a figure, and keep them with the machine.

Rows and the reasons for their figures: README.md here.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from tests.bench.harness import Unmeasured, machine
from tests.bench.peers.rows import p21_peer_appends, p22_peer_fan_out, p23_peer_gets
from tests.bench.rows import (
    p1_append,
    p2_rows,
    p3_latency,
    p4_latency,
    p5_ingest,
    p6_fan_out,
    p7_idle,
    p8_fold,
    p9_recovery,
    p10_segments,
    p12_growth,
    p13_fairness,
    p14_isolation,
    p16_access,
)
from tests.bench.small import p21_single_appends, p22_fan_out, p23_gets, p24_client, p25_idle_role
from tests.bench.spark import p11_spark_scan, p15_spark_jobs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.bench.harness import Figure

ROWS: dict[str, Callable[[], Awaitable[list[Figure]]]] = {
    "P1": p1_append.measure,
    "P2": p2_rows.measure,
    "P3": p3_latency.measure,
    "P4": p4_latency.measure,
    "P5": p5_ingest.measure,
    "P6": p6_fan_out.measure,
    "P7": p7_idle.measure,
    "P8": p8_fold.measure,
    "P9": p9_recovery.measure,
    "P10": p10_segments.measure,
    "P11": p11_spark_scan.measure,
    "P12": p12_growth.measure,
    "P13": p13_fairness.measure,
    "P14": p14_isolation.measure,
    "P15": p15_spark_jobs.measure,
    "P16": p16_access.measure,
    "P21": p21_single_appends.measure,
    "P22": p22_fan_out.measure,
    "P23": p23_gets.measure,
    "P24": p24_client.measure,
    "P25": p25_idle_role.measure,
}
PEER_ROWS: dict[str, Callable[[], Awaitable[Sequence[Figure | Unmeasured]]]] = {
    "P21": p21_peer_appends.measure,
    "P22": p22_peer_fan_out.measure,
    "P23": p23_peer_gets.measure,
}
"""Against other servers (`make peers`). A row may be in both tables: against a bare handler, then against peers."""
NAMES = sorted({*ROWS, *PEER_ROWS}, key=lambda name: int(name[1:]))
RESULTS = Path(__file__).parent / "results"


async def measure(rows: list[str]) -> list[Figure | Unmeasured]:
    """Each row in turn, its lines as they come. A row that fails has one line, and the others go on."""
    figures: list[Figure | Unmeasured] = []
    for row in rows:
        for part in (ROWS.get(row), PEER_ROWS.get(row)):
            for figure in await _measured(row, part) if part is not None else ():
                print(figure.line(), flush=True)
                figures.append(figure)
    return figures


async def _measured(
    row: str, part: Callable[[], Awaitable[Sequence[Figure | Unmeasured]]]
) -> Sequence[Figure | Unmeasured]:
    try:
        return await part()
    except Exception as error:  # of any kind: the figures of an hour before it count
        traceback.print_exception(error)
        return [Unmeasured(row, "row", f"{type(error).__name__}: {error}", failed=True)]


def main() -> int:
    """Exit status 0: measured, whatever the figures are; `short` in a line says what fell short. 1: a row failed."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rows", default=",".join(NAMES), help="which rows, e.g. P1,P4 (default: all)")
    rows = parser.parse_args().rows.split(",")
    if unknown := [row for row in rows if row not in NAMES]:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(NAMES)}")
    figures = uvloop.run(measure(rows))
    RESULTS.mkdir(exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    path = RESULTS / f"{now:%Y-%m-%dT%H%M%S}.json"
    settings = {name: value for name, value in os.environ.items() if name.startswith("EDDYLINE_BENCH_")}
    told = {"machine": machine(), "settings": settings, "figures": [asdict(f) for f in figures]}
    path.write_text(json.dumps(told, indent=1))
    print(f"written to {path.relative_to(Path.cwd())}" if path.is_relative_to(Path.cwd()) else f"written to {path}")
    return int(any(isinstance(figure, Unmeasured) and figure.name == "row" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
