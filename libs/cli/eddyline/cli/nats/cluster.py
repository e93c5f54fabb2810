"""nats-servers that form one cluster: the configuration of each, and looks at how a cluster and its streams do.

For the drills and the tests, which each run the servers in a way of their own. A look waits for one answer of a second at
most, and what NATS does not answer is "no".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import nats

from eddyline.cli.nats.failures import NATS_FAILURES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nats.js import JetStreamContext

SIZE: Final = 3
"""Servers, and replicas of a stream: the fewest of which one may be lost."""
ASK_S: Final = 1.0


def server_config(
    name: str, data: Path, *, client_address: str, route_address: str, peers: Sequence[str], advertise: str = ""
) -> str:
    """Text of one server's configuration file. `data` = where its streams are; `peers` = where it dials the others.

    `advertise`: the address that it tells the others to dial it at; empty = `route_address`.
    """
    routes = ", ".join(f'"nats://{peer}"' for peer in peers)
    told = f'advertise: "{advertise}"' if advertise else ""
    return f"""
        server_name: {name}
        listen: "{client_address}"
        jetstream {{ store_dir: "{data}" }}
        cluster {{
            name: eddyline
            listen: "{route_address}"
            {told}
            pool_size: -1
            routes: [{routes}]
        }}
        """


async def answers(address: str) -> bool:
    """Whether the server there reaches a leader of JetStream's API."""
    try:
        client = await nats.connect(
            f"nats://{address}", allow_reconnect=False, connect_timeout=ASK_S, error_cb=_nothing
        )
        try:
            await client.jetstream(timeout=ASK_S).account_info()
        finally:
            await client.close()
    except NATS_FAILURES:
        return False
    return True


async def stream_leader(jetstream: JetStreamContext, stream: str) -> str:
    """Name of the server that leads a stream; "" = none does now."""
    try:
        cluster = (await jetstream.stream_info(stream)).cluster
    except NATS_FAILURES:
        return ""
    return cluster.leader or "" if cluster is not None else ""


async def is_whole(jetstream: JetStreamContext, stream: str, *, replicas: int = SIZE) -> bool:
    """Whether a stream has so many replicas, and each is there and has all of it."""
    try:
        cluster = (await jetstream.stream_info(stream)).cluster
    except NATS_FAILURES:
        return False
    others = cluster.replicas or [] if cluster is not None else []
    return len(others) == replicas - 1 and all(peer.current and not peer.offline for peer in others)


async def _nothing(_error: Exception) -> None:
    """Told by what fails."""
