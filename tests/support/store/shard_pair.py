"""Two stores that are the shards of one cluster, on loopback, and a name that each owns."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.support.cluster.processes import free_address
from tests.support.store.served import served_store
from tests.support.store.shards import names_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.core.auth.role import RoleAccess
    from tests.support.store.served import ServedStore

SHARDS = 2


def topic_on(shard: int) -> str:
    """A name that a shard of the two owns."""
    return names_on(shard, SHARDS, 1)[0]


@asynccontextmanager
async def served_pair(
    folder: Path, *, access: RoleAccess | None = None
) -> AsyncIterator[tuple[ServedStore, ServedStore]]:
    """Both, each told of the other."""
    addresses = (free_address(), free_address())
    async with (
        served_store(folder / "0", shard_index=0, addresses=addresses, access=access) as first,
        served_store(folder / "1", shard_index=1, addresses=addresses, access=access) as second,
    ):
        yield first, second
