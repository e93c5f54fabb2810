"""A store of its own for one drill, with settings of its own, kept running as the cluster's parts are."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import grpc

from eddyline.cli.local_cluster.folder import LOGS
from eddyline.cli.local_cluster.ports import LOOPBACK, choose_ports
from eddyline.cli.local_cluster.process import ProcessSpec
from eddyline.cli.local_cluster.readiness import role_is_ready
from eddyline.cli.local_cluster.settings_check import roles_access
from eddyline.cli.local_cluster.supervisor import supervised
from eddyline.client.connect import connect
from eddyline.core.runtime.tasks import noop
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from eddyline.cli.command import Context
    from eddyline.cli.local_cluster.process import ManagedProcess
    from eddyline.client.connect import Client

STATUS_S: Final = 2.0
STORE_MODULE: Final = "eddyline.store"


class LoneStore:
    """A running store, its client, and what it says of itself."""

    def __init__(self, part: ManagedProcess, client: Client, channel: grpc.aio.Channel) -> None:
        self.part = part
        self.client = client
        self._status = cluster_pb2_grpc.ClusterServiceStub(channel)

    async def status(self) -> cluster_pb2.GetStatusResponse | None:
        """Its status; None = it does not answer."""
        try:
            return await self._status.GetStatus(cluster_pb2.GetStatusRequest(), timeout=STATUS_S)
        except grpc.aio.AioRpcError:
            return None


@asynccontextmanager
async def lone_store(
    folder: Path,
    context: Context,
    *,
    settings: Mapping[str, str],
    variables: Mapping[str, str] | None = None,
    module: str = STORE_MODULE,
) -> AsyncIterator[LoneStore]:
    """Run one; `settings` by their names without the prefix, `variables` as they are."""
    _make(folder)
    address = f"{LOOPBACK}:{choose_ports({}, free_ports=True)['store']}"
    chosen = {"LISTEN": address, "DATA_DIR": str(folder / "store"), **settings}
    spec = ProcessSpec(
        "store",
        (sys.executable, "-m", module),
        address,
        partial(role_is_ready, "store", address, access=roles_access(context.environ).caller),
        {
            # what a client is told of the cluster
            "EDDYLINE_COMMON_STORE_ADDRESSES": address,
            **{f"EDDYLINE_STORE_{name}": value for name, value in chosen.items()},
            **(variables or {}),
        },
    )
    assert context.access is not None
    async with (
        supervised(
            [[spec]], data=folder, clock=context.clock, random_source=context.random_source, tell=noop
        ) as supervisor,
        connect(
            address,
            access=context.access,
            clock=context.clock,
            random_source=context.random_source,
            timeout_s=30.0,
        ) as client,
        context.access.open_channel(address, own_connection=True) as channel,
    ):
        yield LoneStore(supervisor.parts["store"], client, channel)


def _make(folder: Path) -> None:
    (folder / LOGS).mkdir(parents=True)
