"""What a delivery role says of itself in GetStatus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.cluster_rpc import RoleStatus
from eddyline.v1 import cluster_pb2

if TYPE_CHECKING:
    from eddyline.delivery.figures import Figures
    from eddyline.delivery.ring import RingBudget
    from eddyline.delivery.tail import Tails


def delivery_status(figures: Figures, *, tails: Tails, budget: RingBudget) -> RoleStatus:
    """Ready = the store is reached and followed."""
    ready = tails.up.is_set()
    return RoleStatus(
        ready=ready,
        reason="" if ready else tails.trouble,
        detail=cluster_pb2.DeliveryStatus(
            watch_count=figures.watch_count,
            topic_count=len(tails),
            delivered_count=figures.delivered_count,
            buffered_bytes=budget.nbytes,
        ),
    )
