"""How a command finds the cluster: `--cluster`, else EDDYLINE_ADDRESS, else the folder that `eddyline up` keeps."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.cli.errors import CommandError
from eddyline.cli.local_cluster.ports import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from eddyline.cli.terminal.output import Json

ADDRESS_VARIABLE: Final = "EDDYLINE_ADDRESS"
DATA_DEFAULT: Final = "eddyline-data"
DEMO: Final = "demo"
"""The demo's folder, within the one of `eddyline up`: its topics and ports are nobody else's business."""
CLUSTER_FILE: Final = "cluster.json"
ROLES: Final = ("nats", "store", "ingest", "delivery")
_MORE: Final = re.compile(r"(store|delivery)-[1-9][0-9]?")
"""Names of further stores and deliveries. The first of each has its role's name alone, as where it is the only one."""


@dataclass(frozen=True, slots=True)
class ClusterPart:
    """One process of a local cluster; pid None = it does not run now. No number stands for that: `kill` takes 0 for the
    caller's own processes. `metrics`: where they are scraped; empty = nowhere."""

    address: str
    pid: int | None
    metrics: str = ""


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The file that `eddyline up` writes into its folder: the addresses of all parts, kept across restarts."""

    parts: dict[str, ClusterPart]

    def to_json(self) -> str:
        """As text."""
        return json.dumps({name: asdict(part) for name, part in self.parts.items()}, indent=2) + "\n"


def read_cluster_file(data: Path) -> ClusterFile | None:
    """Read the folder's file; None = there is none.

    Raises:
        CommandError: it is not one of ours.
    """
    path = data / CLUSTER_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        loaded = json.loads(text)
        more = [name for name in loaded if _MORE.fullmatch(name)]
        parts = {name: _part(loaded[name]) for name in (*ROLES, *more)}
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"{path} is not a cluster file ({error!r})", "delete it; `eddyline up` writes it again"
        ) from None
    return ClusterFile(parts)


def _part(loaded: dict[str, Json]) -> ClusterPart:
    """As it was written. Earlier versions wrote no `metrics`, and 0 as the pid of a process that does not run."""
    pid = loaded["pid"]
    if pid is not None and not isinstance(pid, int):
        raise TypeError(f"{pid!r} is no pid")
    return ClusterPart(str(loaded["address"]), pid or None, str(loaded.get("metrics", "")))


def cluster_address(asked: str, environ: Mapping[str, str], data: Path) -> str:
    """The address to connect to; several with commas where any role will do.

    Raises:
        CommandError: nothing names a cluster.
    """
    if asked or environ.get(ADDRESS_VARIABLE):
        return asked or environ[ADDRESS_VARIABLE]
    found = read_cluster_file(data)
    if found is None:
        demo = data / DEMO
        others = f"for the demo's cluster give --data {demo}; " if (demo / CLUSTER_FILE).exists() else ""
        raise CommandError(
            f"no cluster is given and {data / CLUSTER_FILE} does not exist",
            f"{others}start one with `eddyline up`, or give --cluster HOST:PORT or {ADDRESS_VARIABLE}",
        )
    return client_address({name: part.address for name, part in found.parts.items()})


def process_names(role: str, count: int) -> list[str]:
    """Names of so many parts of a role."""
    return [role, *(f"{role}-{number}" for number in range(1, count))]


def role_of(name: str) -> str:
    """The role of a part, by its name."""
    return name.partition("-")[0]


def in_order(names: Iterable[str]) -> list[str]:
    """Names of parts by role, and by number within it."""
    return sorted(names, key=lambda name: (ROLES.index(role_of(name)), int(name.partition("-")[2] or 0)))


def client_address(addresses: Mapping[str, str]) -> str:
    """The address that commands use, out of all parts' addresses: any role's, a store's first."""
    roles = ("store", "delivery", "ingest")
    names = [name for name in addresses if role_of(name) in roles and not name.endswith(METRICS)]
    return ",".join(addresses[name] for name in sorted(names, key=lambda name: roles.index(role_of(name))))
