"""Server interceptor that refuses calls from roles of another cluster before their handler runs.

A role sends its cluster's id with every call to a store, as the metadata `eddyline-cluster-id`; the store's server compares.
A role that forwards a client's call sends `eddyline-forwarded` instead, which marks the call and has the id.
A call without an id is not checked: clients know an address and no cluster.
Order: after `eddyline.core.server.error_interceptor`, which makes the refusal a status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import grpc

from eddyline.core.errors import ClusterMismatch
from eddyline.core.transport.handlers import handler_like
from eddyline.core.transport.quick_gate import admit_any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eddyline.core.transport.handlers import Continuation, Handler
    from eddyline.core.transport.quick_gate import Admit, Certificate, Metadata

CLUSTER_ID_KEY: Final = "eddyline-cluster-id"
FORWARDED_KEY: Final = "eddyline-forwarded"
"""Marks a call that a role forwarded to the owning store; its value is the cluster id of that role."""
_ID_KEYS: Final = frozenset((CLUSTER_ID_KEY, FORWARDED_KEY))


def cluster_metadata(cluster_id: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a role's calls; cluster id "" = none, and nothing is checked."""
    return ((CLUSTER_ID_KEY, cluster_id),) if cluster_id else ()


def forwarded_metadata(cluster_id: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a forwarded call, which the receiving shard must not forward again."""
    return ((FORWARDED_KEY, cluster_id),)


class ClusterIdInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls with another cluster id than `cluster_id`."""

    def __init__(self, cluster_id: str) -> None:
        assert cluster_id
        self._cluster_id = cluster_id

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        called_by = self._other_cluster(handler_call_details.invocation_metadata or ())
        return handler if called_by is None else self._refusing(handler, called_by)

    def quick_admit(self, _method: str, metadata: Metadata, _certificate: Certificate) -> Admit | None:
        return admit_any if self._other_cluster(metadata) is None else None

    def _other_cluster(self, metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
        """Return the other cluster that the caller belongs to; None = it is of this one, or of none."""
        for key, value in metadata:
            if key in _ID_KEYS and value != self._cluster_id:
                return value if isinstance(value, str) else value.decode(errors="replace")
        return None

    def _refusing(self, handler: Handler, called_by: str) -> Handler:
        async def refuse(_request: object, _context: object) -> NoReturn:
            raise ClusterMismatch(
                f"this store belongs to cluster {self._cluster_id}, the caller to cluster {called_by}",
                clusterId=self._cluster_id,
            )

        return handler_like(handler, refuse)
