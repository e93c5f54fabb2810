"""`eddyline up`: the local cluster in the foreground, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_verb
from eddyline.cli.errors import EXIT_OK
from eddyline.cli.local_cluster.find import DATA_DEFAULT, in_order
from eddyline.cli.local_cluster.folder import log_path
from eddyline.cli.nats.given import add_nats_arguments, check_answers, given_nats
from eddyline.core.runtime.settings import STORE_SHARDS_MAX

if TYPE_CHECKING:
    from eddyline.cli.command import Context, Subparsers
    from eddyline.cli.local_cluster.cluster import LocalCluster
    from eddyline.cli.local_cluster.process import PartEvent
    from eddyline.cli.terminal.output import Json, Output

ALL_STOPPED: Final = "all parts are stopped"
_HEADER: Final = ("ROLE", "ADDRESS", "METRICS", "PID", "LOG")


def add(subparsers: Subparsers) -> None:
    parser = add_verb(
        subparsers,
        "up",
        what="Run a cluster on this machine: nats-server, store, ingest and delivery, until Ctrl-C.",
        example="eddyline up\neddyline up --data /tmp/second --free-ports --shards 2 --delivery 2\n"
        "eddyline up --nats tls://nats.example:4222 --nats-creds ingest.creds --nats-ca ca.pem",
        run=run,
        finds_cluster=False,
    )
    add_cluster_arguments(parser)
    add_nats_arguments(parser)
    parser.add_argument(
        "--shards",
        type=part_count,
        default=1,
        metavar="N",
        help="stores, 1 to 64, which share the topics; for a folder's life (default 1)",
    )
    parser.add_argument(
        "--delivery", type=part_count, default=1, metavar="N", help="replicas of delivery, 1 to 64 (default 1)"
    )


def part_count(text: str) -> int:
    """A number of parts of one role.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= STORE_SHARDS_MAX:
        raise argparse.ArgumentTypeError(f"a number from 1 to {STORE_SHARDS_MAX}, not {text!r}")
    return int(text)


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every verb that runs a cluster takes."""
    parser.add_argument(
        "--free-ports", action="store_true", help="take any free ports, not 7701 to 7703, 7711 to 7713, 4222"
    )
    parser.add_argument(
        "--sources",
        type=Path,
        metavar="FILE",
        help="TOML file of sources: a [[source]] table each",
    )


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the cluster until a signal stops it."""
    # Here, because it asks the roles by gRPC.
    from eddyline.cli.local_cluster.cluster import LocalClusterPlan, local_cluster

    nats = given_nats(arguments)
    if nats is not None:
        await check_answers(nats.addresses)
    plan = LocalClusterPlan(
        arguments.data,
        free_ports=arguments.free_ports,
        sources_file=arguments.sources,
        shards=arguments.shards,
        deliveries=arguments.delivery,
        nats=nats,
    )
    output = context.output
    starting, up = asyncio.Event(), asyncio.Event()

    def tell(event: PartEvent) -> None:
        if not starting.is_set():
            # Not before: the folder may be somebody else's.
            starting.set()
            output.print_text(f"starting in {arguments.data}")
        if event.kind in ("note", "died", "stopped") or up.is_set():
            output.print_result(part_event_text(event), part_event_fields(event))

    try:
        async with local_cluster(
            plan,
            environ=context.environ,
            clock=context.clock,
            host=context.host,
            random_source=context.random_source,
            tell=tell,
        ) as cluster:
            print_roles(cluster, output)
            output.print_text(f"try: {status_command(arguments.data)}    Ctrl-C stops it")
            up.set()
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        if not up.is_set():
            raise
        # Told to stop, and it has stopped: that is what was asked.
        output.print_text(ALL_STOPPED)
    return EXIT_OK


def print_roles(cluster: LocalCluster, output: Output) -> None:
    """Say what runs where."""
    parts = cluster.supervisor.parts
    rows = [
        (
            name,
            cluster.addresses[name],
            cluster.metrics_address(name) or "-",
            str(parts[name].pid),
            _shown_path(log_path(cluster.data, name)),
        )
        for name in in_order(parts)
    ]
    fields: list[dict[str, Json]] = [
        {
            "event": "up",
            "role": name,
            "address": address,
            "metrics_address": cluster.metrics_address(name),
            "pid": int(pid),
            "log": log,
        }
        for name, address, _, pid, log in rows
    ]
    output.table(_HEADER, rows, fields)


def part_event_text(event: PartEvent) -> str:
    """An event for people."""
    match event.kind:
        case "note":
            return f"{event.name}: {event.detail}"
        case "started":
            return f"{event.name}: started, pid {event.pid}"
        case "ready":
            return f"{event.name}: ready"
        case "died":
            return f"{event.name}: {event.detail}; starting it again"
        case "stopped":
            return f"{event.name}: stopped"


def part_event_fields(event: PartEvent) -> dict[str, Json]:
    """An event as a JSON object."""
    return {"event": event.kind, "role": event.name, "pid": event.pid, "detail": event.detail}


def status_command(data: Path) -> str:
    """The command that finds the cluster of a folder."""
    return f"{own_command()} status" + ("" if data == Path(DATA_DEFAULT) else f" --data {shlex.quote(str(data))}")


def own_command() -> str:
    """How this command is called from where it was: by its name where PATH has it, else by its path."""
    own = Path(sys.executable).parent / "eddyline"
    if shutil.which("eddyline") == str(own) or not own.exists():
        return "eddyline"
    return shlex.quote(_shown_path(own))


def _shown_path(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
