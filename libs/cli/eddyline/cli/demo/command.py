"""The verb: cluster up, real data in, a live view; with `--once` it ends with a proof that fold and bucket are equal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from eddyline.cli.access import add_access
from eddyline.cli.command import add_verb
from eddyline.cli.commands.cluster.up import add_cluster_arguments
from eddyline.cli.local_cluster.find import DATA_DEFAULT, DEMO

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "demo",
        what="Run a cluster with real data in it and show its changes live.",
        example="eddyline demo\neddyline demo --once --free-ports",
        run=run,
        finds_cluster=False,
        data=f"{DATA_DEFAULT}/{DEMO}",
    )
    add_cluster_arguments(parser)
    add_access(parser)
    parser.add_argument("--once", action="store_true", help="load, change, verify key by key, one summary line, end")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the demo."""
    # Here, because nats, certifi and the list are needed by this verb alone, and every other one should start at once.
    from eddyline.cli.demo.demo import run_demo
    from eddyline.cli.local_cluster.settings_check import client_of_own

    return await run_demo(arguments, replace(context, access=client_of_own(arguments, context.environ)))
