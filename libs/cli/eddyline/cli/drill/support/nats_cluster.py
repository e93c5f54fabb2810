"""nats-servers of a drill's own that form one cluster, each kept running as the local cluster's parts are."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from eddyline.cli.local_cluster.cluster import nats_server_program
from eddyline.cli.local_cluster.folder import LOGS
from eddyline.cli.local_cluster.ports import free_addresses
from eddyline.cli.local_cluster.process import ProcessSpec
from eddyline.cli.local_cluster.readiness import nats_is_ready, nats_name
from eddyline.cli.local_cluster.supervisor import supervised
from eddyline.cli.nats.cluster import SIZE, answers, server_config
from eddyline.core.runtime.tasks import noop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from eddyline.cli.command import Context
    from eddyline.cli.local_cluster.supervisor import Supervisor


class NatsCluster:
    """The running servers."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.parts = supervisor.parts
        """By the name that JetStream has of a server."""

    @property
    def addresses(self) -> str:
        """The client addresses, separated by commas."""
        return ",".join(part.spec.address for part in self.parts.values())


@asynccontextmanager
async def nats_cluster(folder: Path, context: Context) -> AsyncIterator[NatsCluster]:
    """Run them; they are ready when each of them reaches JetStream's leader. Leaving it takes all down.

    Raises:
        CommandError: one does not get ready, or nats-server is missing.
    """
    (folder / LOGS).mkdir(parents=True)
    addresses = free_addresses(2 * SIZE)
    clients, routes = addresses[:SIZE], addresses[SIZE:]
    specs = [_spec(folder / f"n{number}", clients[number], routes, number) for number in range(SIZE)]
    async with supervised(
        [specs], data=folder, clock=context.clock, random_source=context.random_source, tell=noop
    ) as supervisor:
        yield NatsCluster(supervisor)


def _spec(data: Path, address: str, routes: Sequence[str], number: int) -> ProcessSpec:
    name = nats_name(data)
    data.mkdir()
    peers = [route for other, route in enumerate(routes) if other != number]
    config = data / "server.conf"
    config.write_text(
        server_config(name, data / "data", client_address=address, route_address=routes[number], peers=peers),
        encoding="ascii",
    )

    async def is_ready(_pid: int) -> bool:
        return await nats_is_ready(address, name) and await answers(address)

    return ProcessSpec(name, (nats_server_program(), "-c", str(config)), address, is_ready)
