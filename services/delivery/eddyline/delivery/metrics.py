"""What a delivery role measures: its figures as metrics, all of them from the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core import telemetry
from eddyline.core.metrics import counter, gauge, histogram

if TYPE_CHECKING:
    from eddyline.core.metrics import Metric
    from eddyline.delivery.role import DeliveryRole


async def delivery_metrics(role: DeliveryRole) -> list[Metric]:
    """Everything, now."""
    figures = role.figures
    return [
        gauge(telemetry.DELIVERY_READY, "1 = the store is reached and followed.", role.tails.up.is_set()),
        gauge(telemetry.DELIVERY_WATCHES, "Open watch streams.", figures.watch_count),
        gauge(telemetry.DELIVERY_FOLLOWED_TOPICS, "Topics followed at the store.", len(role.tails)),
        counter(telemetry.DELIVERY_DELIVERED_RECORDS, "Records sent, to all together.", figures.delivered_count),
        counter(telemetry.DELIVERY_DELIVERED_BYTES, "Bytes of frames sent, to all together.", figures.delivered_bytes),
        counter(
            telemetry.DELIVERY_ENCODED_FRAMES,
            "Frames encoded for the rings, each once for all that want the same.",
            role.budget.encoded_count,
        ),
        gauge(telemetry.DELIVERY_BUFFERED_BYTES, "Bytes held for fan-out, in all rings.", role.budget.nbytes),
        counter(
            telemetry.DELIVERY_CATCHUP_READS,
            "Reads of the store's log or fold, for subscribers that the rings could not serve.",
            role.fetcher.read_count,
        ),
        histogram(
            telemetry.DELIVERY_LATENCY_SECONDS,
            "From a record's commit at the store to its place in a ring, once a frame.",
            figures.latency,
        ),
    ]
