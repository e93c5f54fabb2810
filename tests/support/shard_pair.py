"""Two stores that are the shards of one cluster, on loopback, and names that either owns."""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING

from eddyline.core.routing import shard_of
from tests.support.processes import free_address
from tests.support.store_server import served_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.core.role_access import RoleAccess
    from tests.support.store_server import ServedStore

SHARDS = 2


def name_on(shard: int, *, prefix: str = "topic", skip: int = 0) -> str:
    """A name that a shard of the two owns; `skip` = not so many of the first ones."""
    found = (name for number in count() if shard_of(name := f"{prefix}-{number}", SHARDS) == shard)
    for _ in range(skip):
        next(found)
    return next(found)


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
