"""The NATS that one has, beside which `eddyline up` runs a cluster: where it is, and how ingest is let in.

The options become settings in ingest's environment and nothing else: no secret is in a file that the command writes, in a
line that it prints, or in the command line of a process that it starts.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from eddyline.cli.errors import EXIT_USAGE, CommandError

if TYPE_CHECKING:
    import argparse

NATS_PORT: Final = 4222
PROBE_S: Final = 5.0
"""How long a server is waited for: one of another continent answers in a second."""
URL_VARIABLE: Final = "EDDYLINE_INGEST_NATS_URL"
_SCHEMES: Final = ("nats", "tls")
_USERINFO: Final = re.compile(r"//[^@/]*@")
_FILES: Final = {
    "nats_creds": "EDDYLINE_INGEST_NATS_CREDS_FILE",
    "nats_nkey": "EDDYLINE_INGEST_NATS_NKEY_FILE",
    "nats_ca": "EDDYLINE_INGEST_NATS_TLS_CA",
    "nats_cert": "EDDYLINE_INGEST_NATS_TLS_CERT",
    "nats_key": "EDDYLINE_INGEST_NATS_TLS_KEY",
}


@dataclass(frozen=True, slots=True)
class GivenNats:
    """Servers that run already. `addresses` = host and port of each, with commas; `variables` = ingest's settings."""

    addresses: str
    variables: dict[str, str] = field(repr=False)


def add_nats_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--nats` and what belongs to it."""
    group = parser.add_argument_group(
        "the NATS that you have", "in place of one of the cluster's own; other settings: EDDYLINE_INGEST_NATS_…"
    )
    group.add_argument(
        "--nats",
        metavar="URL",
        help="nats://[user:password@]host[:port] or tls://…; servers of one cluster with commas",
    )
    group.add_argument("--nats-creds", type=Path, metavar="FILE", help="credentials file")
    group.add_argument("--nats-nkey", type=Path, metavar="FILE", help="file of an nkey's seed")
    group.add_argument("--nats-ca", type=Path, metavar="FILE", help="authorities of its certificate (PEM)")
    group.add_argument("--nats-cert", type=Path, metavar="FILE", help="client certificate for it (PEM)")
    group.add_argument("--nats-key", type=Path, metavar="FILE", help="key of that certificate (PEM)")


def given_nats(arguments: argparse.Namespace) -> GivenNats | None:
    """The NATS server by `--nats` and its options; None = the cluster runs its own.

    Raises:
        CommandError: they do not go together, the URL is none, or a file cannot be read.
    """
    files: dict[str, Path] = {name: getattr(arguments, name) for name in _FILES if getattr(arguments, name)}
    if arguments.nats is None:
        if files:
            flag = "--" + next(iter(files)).replace("_", "-")
            raise CommandError(f"{flag} is given without --nats", "name the servers: --nats URL", exit_code=EXIT_USAGE)
        return None
    if ("nats_cert" in files) is not ("nats_key" in files):
        raise CommandError("--nats-cert and --nats-key go together", "give both", exit_code=EXIT_USAGE)
    for name, path in files.items():
        try:
            path.open("rb").close()
        except OSError as error:
            flag = "--" + name.replace("_", "-")
            raise CommandError(f"{flag}: cannot read {path}: {error.strerror}", exit_code=EXIT_USAGE) from None
    addresses = ",".join(_address(one.strip()) for one in str(arguments.nats).split(",") if one.strip())
    if not addresses:
        raise _no_url()
    variables = {_FILES[name]: str(path.absolute()) for name, path in files.items()}
    return GivenNats(addresses, variables | {URL_VARIABLE: str(arguments.nats)})


async def check_answers(addresses: str) -> None:
    """Refuse to start beside servers of which none takes a connection.

    Raises:
        CommandError: it says why, of each.
    """
    troubles: list[str] = []
    for address in addresses.split(","):
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(PROBE_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except TimeoutError:
            troubles.append(f"{address}: no answer in {PROBE_S:g} s")
        except OSError as error:
            troubles.append(f"{address}: {error.strerror or error}")
        else:
            writer.close()
            return
    raise CommandError(
        f"no NATS server answers: {'; '.join(troubles)}", "start it, or name another one with --nats URL"
    )


def without_login(text: str) -> str:
    """A setting's value without the user part of its URLs."""
    return _USERINFO.sub("//***@", text)


def _address(text: str) -> str:
    url = urlsplit(text if "://" in text else f"nats://{text}")
    try:
        host, port = url.hostname, url.port
    except ValueError:
        host, port = None, None
    if not host or url.scheme not in _SCHEMES or url.path not in {"", "/"} or url.query or url.fragment or port == 0:
        raise _no_url()
    return f"[{host}]:{port or NATS_PORT}" if ":" in host else f"{host}:{port or NATS_PORT}"


def _no_url() -> CommandError:
    # Not shown: what is no URL may hold a password anywhere.
    return CommandError(
        "--nats is not a NATS URL",
        "give nats://[user:password@]host[:port] or tls://…, several with commas; percent-encode @ : / in a password",
        exit_code=EXIT_USAGE,
    )
