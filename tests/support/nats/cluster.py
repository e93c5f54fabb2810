"""Three real nats-servers with JetStream, clustered on loopback: killed, stopped, cut off from each other, restarted.

Routes go through small proxies of the test's own, one a pair and direction, so that a server can be cut off from the
others while clients still reach it. Servers advertise an address without a listener, so that no route bypasses the
proxies. Every wait is bounded, and every process is gone at the end.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import nats.errors
import nats.js.errors

from eddyline.cli.nats.cluster import SIZE, answers, is_whole, server_config
from eddyline.cli.nats.cluster import stream_leader as leader_now
from tests.support.cluster.processes import free_address
from tests.support.nats.tcp_proxy import RouteProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from nats.js.client import JetStreamContext

READY_S: Final = 20.0
"""A start takes 3 to 5 s on an idle machine: an election waits for up to 4 s."""
LOOK_S: Final = 0.05
NOWHERE: Final = "127.0.0.1:9"
"""The discard port, without a listener."""

_TRANSIENT: Final = (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError)


class ClusterNode:
    """One server. It keeps its data when it is restarted."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.client_address = free_address()
        self.route_address = free_address()
        self.peers: list[str] = []
        """Addresses of the proxies to the others."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address for clients."""
        return f"nats://{self.client_address}"

    @property
    def running(self) -> bool:
        """True = it has a process."""
        return self._process is not None

    def start(self) -> None:
        """Start it; it may take a while until it serves."""
        assert self._process is None, f"{self.name} runs"
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "server.conf"
        config.write_text(self._config(), encoding="ascii")
        command = [str(Path(sys.executable).parent / "nats-server"), "-c", str(config)]
        command += ["-l", str(self.folder / "server.log")]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Suspend it, connections open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def _config(self) -> str:
        return server_config(
            self.name,
            self.folder / "data",
            client_address=self.client_address,
            route_address=self.route_address,
            peers=self.peers,
            advertise=NOWHERE,
        )


class NatsCluster:
    """See the module. Made by `nats_cluster`."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [ClusterNode(f"n{number}", folder / f"n{number}") for number in range(SIZE)]
        self._proxies: dict[tuple[str, str], RouteProxy] = {}

    @property
    def url(self) -> str:
        """All three, with commas."""
        return ",".join(node.url for node in self.nodes)

    def node(self, name: str) -> ClusterNode:
        """The server of a name."""
        return next(node for node in self.nodes if node.name == name)

    def node_at(self, address: str) -> ClusterNode:
        """The server that serves clients at an address."""
        return next(node for node in self.nodes if node.client_address == address)

    async def open(self, stack: AsyncExitStack) -> None:
        """Start proxies and servers, and wait until JetStream has a leader."""
        for node in self.nodes:
            for peer in self.nodes:
                if peer is not node:
                    proxy = await stack.enter_async_context(RouteProxy(peer.route_address))
                    self._proxies[node.name, peer.name] = proxy
                    node.peers.append(proxy.address)
            stack.callback(node.kill)
            node.start()
        await self.wait_ready()

    def isolate(self, name: str) -> None:
        """Cut a server off from the others; clients still reach it."""
        for pair, proxy in self._proxies.items():
            if name in pair:
                proxy.cut()

    def rejoin(self) -> None:
        """Reconnect all servers."""
        for proxy in self._proxies.values():
            proxy.mend()

    async def restart(self, name: str) -> None:
        """Start a killed server again, and wait until the cluster is complete."""
        self.node(name).start()
        await self.wait_ready()

    async def wait_ready(self) -> None:
        """Wait until every running server answers JetStream's API, so that it knows a leader."""
        for node in self.nodes:
            if node.running:
                await eventually(lambda node=node: answers(node.client_address), f"{node.name} has no JetStream")  # type: ignore[misc]


@asynccontextmanager
async def nats_cluster(folder: Path) -> AsyncIterator[NatsCluster]:
    """A cluster that is ready."""
    async with AsyncExitStack() as stack:
        cluster = NatsCluster(folder)
        await cluster.open(stack)
        yield cluster


async def eventually(look: Callable[[], Awaitable[bool]], failure: str, *, seconds: float = READY_S) -> None:
    """Poll until the condition holds; an error of NATS counts as "not yet"."""
    deadline = time.perf_counter() + seconds
    while True:
        try:
            if await look():
                return
            trouble = ""
        except _TRANSIENT as error:
            trouble = f": {error!r}"
        assert time.perf_counter() < deadline, failure + trouble
        await asyncio.sleep(LOOK_S)


async def stream_leader(js: JetStreamContext, stream: str) -> str:
    """Name of the server that leads a stream, once one does."""
    found: list[str] = []

    async def look() -> bool:
        found[:] = [await leader_now(js, stream)]
        return bool(found[0])

    await eventually(look, f"{stream} has no leader")
    return found[0]


async def wait_current(js: JetStreamContext, stream: str) -> None:
    """Wait until every replica of a stream is current."""
    await eventually(lambda: is_whole(js, stream), f"not every replica of {stream} is current")
