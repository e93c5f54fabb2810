"""The verb: which drills, how long, and what they found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.cli.verb import add_verb

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.verb import Context, Subparsers


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    parser = add_verb(
        subparsers,
        "drill",
        what="Kill every part of a cluster in turn, under load, and look for loss; exit code 1 on any.",
        example="eddyline drill --short\neddyline drill --rounds 10 -o json",
        run=run,
        finds_cluster=False,
    )
    parser.add_argument("--short", action="store_true", help="within 90 s (default: several minutes)")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="kills a drill (default: 8, with --short 3)")
    parser.add_argument("--seed", type=int, default=0, help="for the choice of moments and keys (default: drawn)")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder, with its logs")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the drills."""
    # Here, because nats is needed by this verb and the demo alone.
    from eddyline.cli.drill.drills import run_drills

    return await run_drills(arguments, context)
