"""A hub with JetStream in a domain of its own, and a leaf node connected to it: two real servers."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import nats

from tests.support.cluster.processes import free_address
from tests.support.nats.cluster import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HUB_DOMAIN = "hub"
LEAF_DOMAIN = "leaf"


@asynccontextmanager
async def leaf_node(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """URLs of hub and leaf, once the leaf reaches the hub's JetStream by its domain."""
    links = free_address()
    hub_config = f'leafnodes {{ listen: "{links}" }}'
    leaf_config = f'leafnodes {{ remotes: [ {{ url: "nats-leaf://{links}" }} ] }}'
    async with (
        _server(folder / "hub", HUB_DOMAIN, hub_config) as hub,
        _server(folder / "leaf", LEAF_DOMAIN, leaf_config) as leaf,
    ):
        await eventually(lambda: _reaches_hub(leaf), "the leaf does not reach the hub")
        yield hub, leaf


@asynccontextmanager
async def _server(folder: Path, domain: str, rest: str) -> AsyncIterator[str]:
    address = free_address()
    config = _config(folder, f'server_name: {domain}\nlisten: "{address}"\n{rest}\n', domain)
    binary = str(Path(sys.executable).parent / "nats-server")
    started = await asyncio.create_subprocess_exec(binary, "-c", str(config), stderr=asyncio.subprocess.DEVNULL)
    try:
        yield f"nats://{address}"
    finally:
        started.terminate()
        await started.wait()


def _config(folder: Path, text: str, domain: str) -> Path:
    folder.mkdir()
    config = folder / "server.conf"
    config.write_text(
        f'{text}jetstream {{ store_dir: "{folder / "data"}", domain: {domain} }}\n',
        encoding="ascii",
    )
    return config


async def _reaches_hub(leaf: str) -> bool:
    client = await nats.connect(leaf, allow_reconnect=False, connect_timeout=1)
    try:
        await client.jetstream(domain=HUB_DOMAIN, timeout=1).account_info()
        return True
    finally:
        await client.close()
