"""The verb: which drills there are, and for how long they run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from eddyline.cli.access import add_access
from eddyline.cli.command import add_verb
from eddyline.cli.drill.drills import DRILLS

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers


_LINE: Final = """
A drill's line counts kills, records appended and acknowledged, revisions of the bucket acknowledged, watches that resumed,
gaps in the bucket's topic, and what only this drill counts:
  rollback  of either round: revisions that NATS lost, keys that the topic kept, records that the resync wrote
  takeover  revisions that NATS had acknowledged and ingest had not applied at the kill, at most
  leader    seconds from a kill until the source was LIVE and copied again, at most"""


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "drill",
        what="Kill every part of a cluster in turn, under load, and look for loss; exit code 1 on any.",
        example="eddyline drill --short\neddyline drill --only rollback --only leader\neddyline drill --rounds 10 -o json",
        run=run,
        finds_cluster=False,
        more="\n\ndrills:\n" + "\n".join(f"  {name:<10}  {what}" for name, what in DRILLS.items()) + "\n" + _LINE,
    )
    add_access(parser)
    parser.add_argument("--short", action="store_true", help="within 90 s (default: several minutes)")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="kills a drill (default: 8, with --short 3)")
    parser.add_argument(
        "--only", action="append", default=[], choices=DRILLS, metavar="DRILL", help="run this one (repeatable)"
    )
    parser.add_argument("--seed", type=int, default=0, help="for the choice of moments and keys (default: drawn)")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the temporary folder, with its logs (default: only where a drill failed)",
    )


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the drills."""
    # Here, because nats is needed by this verb and the demo alone.
    from eddyline.cli.drill.run import run_drills
    from eddyline.cli.local_cluster.settings_check import client_of_own

    return await run_drills(arguments, replace(context, access=client_of_own(arguments, context.environ)))
