"""All drills in turn, on one cluster in a temporary folder; a line each; exit code 1 on any loss."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.cli.drill.drills import DRILLS
from eddyline.cli.drill.scenarios.clock_jump import clock_drill
from eddyline.cli.drill.scenarios.emptied_bucket import emptied_bucket_drill
from eddyline.cli.drill.scenarios.full_disk import full_disk_drill
from eddyline.cli.drill.scenarios.kill import kill_drill
from eddyline.cli.drill.scenarios.nats_leader import nats_leader_drill
from eddyline.cli.drill.scenarios.overrun import overrun_drill
from eddyline.cli.drill.scenarios.rollback import rollback_drill
from eddyline.cli.drill.scenarios.stalled_store import stalled_store_drill
from eddyline.cli.drill.scenarios.store_jobs import STAGES, store_jobs_drill
from eddyline.cli.drill.scenarios.takeover import takeover_drill
from eddyline.cli.drill.support.pace import long_pace, short_pace
from eddyline.cli.errors import EXIT_FAILED, EXIT_OK
from eddyline.cli.local_cluster.cluster import LocalClusterPlan, local_cluster
from eddyline.core.runtime.tasks import noop

if TYPE_CHECKING:
    import argparse
    from collections.abc import Coroutine, Sequence

    from eddyline.cli.command import Context
    from eddyline.cli.drill.support.scene import Verdict
    from eddyline.cli.terminal.output import Output

VICTIMS: Final = {
    "store": ("store",),
    "ingest": ("ingest",),
    "delivery": ("delivery",),
    "nats": ("nats",),
    "all": ("nats", "store", "ingest", "delivery"),
}
ON_ONE_CLUSTER: Final = ("overrun", "emptied", "rollback", "stalled", "takeover")
"""Of those, what is no kill again and again."""
LONG: Final = ("leader",)
"""Left out with --short, unless named."""
SHORT_DRILL_S: Final = 4.0
"""With --short: five drills of kills, five of other faults, a start and an end within 70 s, and those of a store alone
within 20 s more. No further round begins once a drill's share of the time since the start is over, so that a slow machine
kills less often instead of taking longer."""
SHORT_STALL_S: Final = 2.0
STALL_S: Final = 10.0
"""Longer than a lease, so that it runs out under who holds it."""
SHORT_STAGE_KILLS: Final = 2
LEADER_KILLS: Final = 3
"""Each takes some 10 to 20 s until the cluster is whole again, and start and end as much."""
STAGE_KILLS: Final = 8
"""Kills in a stage of upkeep: each is waited for, so few say much."""


async def run_drills(arguments: argparse.Namespace, context: Context) -> int:
    """Run every drill."""
    seed = arguments.seed or context.random_source.getrandbits(32)
    folder = Path(tempfile.mkdtemp(prefix="eddyline-drill-"))
    context.output.print_text(f"drilling in {folder}, seed {seed}")
    started_s = context.clock.monotonic_s()
    is_kept = True
    """An unexpected failure: the folder with the logs stays."""
    try:
        lost = await _run_all(arguments, context, folder, random.Random(seed))
        seconds = context.clock.monotonic_s() - started_s
        context.output.print_result(
            f"{'LOSS: ' + str(lost) + ' drills failed' if lost else 'no loss'} in {seconds:.0f} s, seed {seed}",
            {"event": "summary", "failed": lost, "seconds": round(seconds, 1), "seed": seed},
        )
        is_kept = arguments.keep or lost > 0
    except asyncio.CancelledError:
        is_kept = arguments.keep
        raise
    finally:
        if is_kept:
            context.output.print_notice(f"the folder is kept: {folder}", {"event": "kept", "folder": str(folder)})
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return EXIT_FAILED if lost else EXIT_OK


async def _run_all(arguments: argparse.Namespace, context: Context, folder: Path, random_source: random.Random) -> int:
    wanted = [name for name in DRILLS if _is_wanted(name, arguments)]
    lost = 0
    if set(wanted) & {*VICTIMS, *ON_ONE_CLUSTER}:
        lost += await _run_on_one_cluster(wanted, arguments, context, folder, random_source)
    if "leader" in wanted:
        kills = arguments.rounds or LEADER_KILLS
        verdict = await nats_leader_drill(folder / "leader", context, kills=kills, random_source=random_source)
        lost += print_verdict(verdict, context.output)
    return lost + await _run_alone(wanted, arguments, context, folder / "alone")


async def _run_on_one_cluster(
    wanted: Sequence[str],
    arguments: argparse.Namespace,
    context: Context,
    folder: Path,
    random_source: random.Random,
) -> int:
    """The drills that follow each other on the same processes: what one leaves behind is there for the next."""
    lost = 0
    async with local_cluster(
        LocalClusterPlan(folder, free_ports=True),
        environ=context.environ,
        clock=context.clock,
        host=context.host,
        random_source=context.random_source,
        tell=noop,
    ) as cluster:
        started_s = context.clock.monotonic_s()
        for number, name in enumerate([name for name in VICTIMS if name in wanted], 1):
            over_s = started_s + number * SHORT_DRILL_S
            pace = short_pace(arguments.rounds, over_s) if arguments.short else long_pace(arguments.rounds)
            verdict = await kill_drill(name, VICTIMS[name], cluster, context, pace=pace, random_source=random_source)
            lost += print_verdict(verdict, context.output)
        stall_s = SHORT_STALL_S if arguments.short else STALL_S
        for name in ON_ONE_CLUSTER:
            if name not in wanted:
                continue
            match name:
                case "overrun":
                    verdict = await overrun_drill(cluster, context, random_source=random_source)
                case "emptied":
                    verdict = await emptied_bucket_drill(cluster, context, random_source=random_source)
                case "rollback":
                    verdict = await rollback_drill(cluster, context, random_source=random_source)
                case "stalled":
                    verdict = await stalled_store_drill(cluster, context, stall_s=stall_s, random_source=random_source)
                case "takeover":
                    second, back = folder / "second", not arguments.short
                    verdict = await takeover_drill(second, cluster, context, and_back=back, random_source=random_source)
            lost += print_verdict(verdict, context.output)
    return lost


async def _run_alone(wanted: Sequence[str], arguments: argparse.Namespace, context: Context, folder: Path) -> int:
    """The drills that each have a store of their own, side by side: most of their time they wait."""
    rounds = arguments.rounds or (SHORT_STAGE_KILLS if arguments.short else STAGE_KILLS)
    lost = 0

    async def one(drill: Coroutine[object, object, Verdict]) -> None:
        nonlocal lost
        lost += print_verdict(await drill, context.output)

    async with asyncio.TaskGroup() as drills:
        for stage in STAGES:
            if stage in wanted:
                drills.create_task(one(store_jobs_drill(stage, folder, context, rounds=rounds)))
        if "disk" in wanted:
            drills.create_task(one(full_disk_drill(folder, context)))
        if "clock" in wanted:
            drills.create_task(one(clock_drill(folder, context)))
    return lost


def _is_wanted(name: str, arguments: argparse.Namespace) -> bool:
    if arguments.only:
        return name in arguments.only
    return not (arguments.short and name in LONG)


def print_verdict(verdict: Verdict, output: Output) -> bool:
    """Say a drill's line, and what it found; True = there was a loss."""
    result = "LOSS" if verdict.findings else "ok"
    counts = "".join(f"  {name} {value:g}" for name, value in verdict.counts.items())
    output.print_result(
        f"{verdict.name:<10} {result:<4}  {verdict.kills} kills  {verdict.records} records  {verdict.revisions} revisions"
        f"  {verdict.resumes} resumes  {verdict.gaps} gaps{counts}  {verdict.seconds:.1f} s",
        {
            "event": "drill",
            "name": verdict.name,
            "ok": not verdict.findings,
            "kills": verdict.kills,
            "records": verdict.records,
            "revisions": verdict.revisions,
            "resumes": verdict.resumes,
            "gaps": verdict.gaps,
            "counts": dict(verdict.counts),
            "seconds": round(verdict.seconds, 1),
            "findings": list(verdict.findings),
        },
    )
    for finding in verdict.findings:
        output.print_text(f"  {finding}")
    return bool(verdict.findings)
