"""SourceService of a store: reads the sources of its own shard, while no ingest runs too.

Every other call of the service needs NATS, and is served by ingest. Translates, validates, delegates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.auth.grant import caller
from eddyline.core.codec.source import source_to_pb
from eddyline.core.forwarding.services import add_refused_calls
from eddyline.core.model.paging import name_after, page_limit, token_after
from eddyline.core.server.server import RawMethod
from eddyline.v1 import source_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.model.source import SourceInfo
    from eddyline.core.server.server import RoleServer
    from eddyline.store.rpc.shard_handle import ShardHandle
    from eddyline.store.shard.api import ShardApi

SERVICE: Final = "eddyline.v1.SourceService"
_LIST: Final = "SourceService.ListSources"


def add_source_service(server: RoleServer, handle: ShardHandle) -> None:
    """Register the service on `server`."""
    reads = SourceReadServicer(handle)
    get, listing = source_pb2.GetSourceResponse, source_pb2.ListSourcesResponse
    served = {
        "GetSource": RawMethod(reads.get, source_pb2.GetSourceRequest.FromString, get.SerializeToString),
        "ListSources": RawMethod(reads.list, source_pb2.ListSourcesRequest.FromString, listing.SerializeToString),
    }
    server.add_raw_methods(SERVICE, served)
    service = source_pb2.DESCRIPTOR.services_by_name["SourceService"]
    add_refused_calls(server, service, served, role="a store", at="an ingest")


class SourceReadServicer:
    """GetSource and ListSources on the shard of a handle."""

    def __init__(self, handle: ShardHandle) -> None:
        self._handle = handle

    async def get(self, request: source_pb2.GetSourceRequest, context: object) -> source_pb2.GetSourceResponse:
        info = await self._handle.get().get_source(request.source)
        caller().check(*info.definition.touched)
        return source_pb2.GetSourceResponse(source=source_to_pb(info))

    async def list(self, request: source_pb2.ListSourcesRequest, context: object) -> source_pb2.ListSourcesResponse:
        shard = self._handle.get()
        limit = page_limit(request.page_size)
        # One record more than the page shows whether there is another page, so the last page is never empty.
        found = await _covered(shard, name_after(request.page_token, call=_LIST), limit + 1)
        page = found[:limit]
        return source_pb2.ListSourcesResponse(
            sources=[source_to_pb(info) for info in page],
            next_page_token=token_after(page[-1].definition.name, call=_LIST) if len(found) > limit else "",
        )


async def _covered(shard: ShardApi, after: str, limit: int) -> Sequence[SourceInfo]:
    """Return up to `limit` sources above `after` that the caller has access to."""
    sources: list[SourceInfo] = []
    while len(sources) < limit:
        page = await shard.list_sources_page(after, limit)
        sources += [info for info in page if all(map(caller().covers, info.definition.touched))]
        if len(page) < limit:
            break
        after = page[-1].definition.name
    return sources[:limit]
