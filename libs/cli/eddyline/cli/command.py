"""Parts shared by all verbs: a parser with an example, a context, a connection."""

from __future__ import annotations

import argparse
import re
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.cli.access import access_from_args, add_access
from eddyline.cli.local_cluster.away import unreachable_error, with_role_names, with_store_name
from eddyline.cli.local_cluster.find import ADDRESS_VARIABLE, DATA_DEFAULT, cluster_address
from eddyline.cli.terminal.units import NUMBER_MAX
from eddyline.core.errors import Deadline, NotReady

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from eddyline.cli.terminal.output import Output
    from eddyline.client.connect import Client
    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.core.runtime.clock import Clock, Host

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
    RunVerb = Callable[[argparse.Namespace, "Context"], Awaitable[int]]

CONNECT_S: Final = 5.0
_ALIASES: Final = {"list": ("ls",)}
"""Of the verbs of groups: `eddyline topic ls`. `eddyline ls` lists keys."""
_ADDRESS: Final = re.compile(r"[^\s:/]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Context:
    """The process environment that a verb may use. `access` = what it shows to a cluster that it runs itself; None =
    nothing."""

    output: Output
    environ: Mapping[str, str]
    clock: Clock
    host: Host
    random_source: random.Random
    access: CallerAccess | None = None


def add_verb(
    subparsers: Subparsers,
    name: str,
    *,
    what: str,
    example: str,
    run: RunVerb,
    finds_cluster: bool = True,
    more: str = "",
    data: str = DATA_DEFAULT,
) -> argparse.ArgumentParser:
    """Add a verb's parser.

    `what` is its help in one sentence, `example` a command line or several, `more` comes last; `data` is where --data
    points by itself.
    """
    parser = subparsers.add_parser(
        name,
        aliases=_ALIASES.get(name, ()),
        help=what,
        description=what,
        epilog="example:\n" + "\n".join(f"  {line}" for line in example.strip().splitlines()) + more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(
        run=run,
        verb=parser.prog.partition(" ")[2],
        refuse=parser.error,
        flags=lambda: list(parser._option_string_actions),
        hint=getattr(parser, "hint", str),
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="json = one object a line (default: text)"
    )
    add_data(parser, data)
    if finds_cluster:
        parser.add_argument(
            "--cluster",
            type=addresses,
            default="",
            metavar="HOST:PORT",
            help="address of any role (default: $EDDYLINE_ADDRESS, else what the folder of `eddyline up` says)",
        )
        add_access(parser)
    return parser


def add_data(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(default),
        metavar="FOLDER",
        help=f"folder of `eddyline up` (default: ./{default})",
    )


def add_group(subparsers: Subparsers, name: str, *, what: str) -> Subparsers:
    """Add a verb that has verbs of its own."""
    parser = subparsers.add_parser(name, help=what, description=what, allow_abbrev=False)
    return parser.add_subparsers(title="verbs", metavar="VERB", required=True)


@asynccontextmanager
async def connected(
    arguments: argparse.Namespace, context: Context, *, topic: str | None = None
) -> AsyncIterator[Client]:
    """Connect to the cluster that the arguments name. `topic` = what all calls within go to, at the store that it lives on.

    Raises:
        CommandError: nothing names one. NotReady: nobody answers there. NotReady and Deadline of a call within name
            the role that gave no answer.
    """
    address = cluster_address(arguments.cluster, context.environ, arguments.data)
    # Here, because gRPC and numpy take half a second to load, which `--help` and wrong usage need not wait for.
    from eddyline.client.connect import connect

    access = access_from_args(arguments, context.environ)
    connecting = connect(
        address, access=access, timeout_s=CONNECT_S, clock=context.clock, random_source=context.random_source
    )
    async with AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(connecting)
        except NotReady as error:
            raise unreachable_error(address, _origin(arguments, context), error, access) from None
        try:
            yield client
        except (NotReady, Deadline) as error:
            if topic is not None:
                raise with_store_name(error, topic, client.topology.stores, access) from None
            raise await with_role_names(error, client, access) from None


def _origin(arguments: argparse.Namespace, context: Context) -> str:
    """The option, variable or folder that named the address."""
    if arguments.cluster:
        return "--cluster"
    return ADDRESS_VARIABLE if context.environ.get(ADDRESS_VARIABLE) else str(arguments.data)


def addresses(text: str) -> str:
    """An argument that is an address, or several with commas; empty = not given."""
    for address in text.split(",") if text else ():
        if not _ADDRESS.fullmatch(address.strip()):
            raise argparse.ArgumentTypeError(f"{address!r} is not HOST:PORT")
    return text


def add_epoch(
    parser: argparse.ArgumentParser, *, otherwise: str = "is reported as a gap RECREATED and read from its first record"
) -> None:
    """Add the option that says of which topic the seq of --after is."""
    parser.add_argument(
        "--epoch",
        type=count,
        default=0,
        metavar="EPOCH",
        help=f"of the topic that the seq is of (`eddyline topic get`): another topic of the name {otherwise}",
    )


def limit(text: str) -> int:
    """An argument that is a whole number from 1."""
    return whole_number(text, 1)


def count(text: str) -> int:
    """An argument that is a whole number from 0."""
    return whole_number(text, 0)


def whole_number(text: str, lowest: int, highest: int = NUMBER_MAX) -> int:
    """An argument that is a whole number of a range."""
    number = int(text)
    if number < lowest:
        raise argparse.ArgumentTypeError(f"{text} is below {lowest}")
    if number > highest:
        raise argparse.ArgumentTypeError(f"{text} is above {highest}")
    return number
