"""How a command finds the cluster: `--cluster`, else EDDYLINE_ADDRESS, else the folder that `eddyline up` keeps."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.cli.failure import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.cli.output import Json

ADDRESS_VARIABLE: Final = "EDDYLINE_ADDRESS"
DATA_DEFAULT: Final = "eddyline-data"
DEMO: Final = "demo"
"""The demo's folder, within the one of `eddyline up`: its topics and ports are nobody else's business."""
CLUSTER_FILE: Final = "cluster.json"
ROLES: Final = ("nats", "store", "ingest", "delivery")


@dataclass(frozen=True, slots=True)
class ClusterPart:
    """One process of a local cluster; pid None = it does not run now. No number stands for that: `kill` takes 0 for the
    caller's own processes. `metrics`: where they are scraped; empty = nowhere."""

    address: str
    pid: int | None
    metrics: str = ""


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """What `eddyline up` writes into its folder: where the parts are, also across restarts."""

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
        parts = {name: _part(loaded[name]) for name in ROLES}
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"{path} is not a cluster file ({error!r})", "delete it; `eddyline up` writes it anew"
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
        others = f"the demo's is there with --data {demo}; " if (demo / CLUSTER_FILE).exists() else ""
        raise CommandError(
            f"no cluster is named and {data / CLUSTER_FILE} does not exist",
            f"{others}start one with `eddyline up`, or give --cluster HOST:PORT or {ADDRESS_VARIABLE}",
        )
    return ",".join(found.parts[role].address for role in ("store", "delivery", "ingest"))
