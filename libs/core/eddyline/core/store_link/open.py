"""Opens a role's link to the store by its settings: directly to a single store, or to several shards as one.

Threading: event loop only.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from eddyline.core.store_link.grpc import GrpcLink
from eddyline.core.store_link.sharded import ShardedLink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.auth.caller_channel import CallerAccess
    from eddyline.core.runtime.settings import CommonSettings
    from eddyline.core.store_link.protocol import StoreLink


@asynccontextmanager
async def open_link(common: CommonSettings, caller: CallerAccess) -> AsyncIterator[StoreLink]:
    """Open the link to the store of the settings, or to all shards; each has a channel, which is closed on exit."""
    async with AsyncExitStack() as stack:
        several = len(common.store_addresses) > 1
        links = [
            GrpcLink(
                await stack.enter_async_context(caller.open_channel(address)),
                cluster_id=common.cluster_id,
                is_one_of_several=several,
            )
            for address in common.store_addresses
        ]
        yield links[0] if len(links) == 1 else ShardedLink(links)


def stores_text(common: CommonSettings) -> str:
    """Return the stores' addresses as text, for a role's ready line."""
    addresses = common.store_addresses
    if len(addresses) == 1:
        return f"store at {addresses[0]}"
    return "stores at " + ", ".join(addresses)
