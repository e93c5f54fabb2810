"""What a delivery role says of itself in GetStatus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.errors import Draining
from eddyline.core.server.cluster_service import RoleStatus
from eddyline.delivery.schedule.governor import LadderStep
from eddyline.v1 import cluster_pb2

if TYPE_CHECKING:
    from eddyline.core.runtime.clock import Clock
    from eddyline.delivery.feed.ring import RingBudget
    from eddyline.delivery.feed.tails import AllTails
    from eddyline.delivery.stats import DeliveryStats


_STEPS: Final = {
    LadderStep.REST: cluster_pb2.PRESSURE_STEP_REST,
    LadderStep.COALESCE: cluster_pb2.PRESSURE_STEP_COALESCE,
    LadderStep.SLOW_B0: cluster_pb2.PRESSURE_STEP_SLOW_B0,
}


def delivery_status(figures: DeliveryStats, *, tails: AllTails, budget: RingBudget, clock: Clock) -> RoleStatus:
    """Ready = all stores are reached and followed, and the role is not going away."""
    reason = Draining.reason if figures.draining else tails.trouble
    return RoleStatus(
        ready=not reason,
        reason=reason,
        detail=cluster_pb2.DeliveryStatus(
            watch_count=figures.watch_count,
            topic_count=len(tails),
            delivered_count=figures.delivered_count,
            buffered_bytes=budget.nbytes,
            pressure=_pressure(figures, clock.monotonic_s()),
            draining=figures.draining,
        ),
    )


def _pressure(figures: DeliveryStats, now_s: float) -> cluster_pb2.DeliveryPressure:
    ruling = figures.ruling
    return cluster_pb2.DeliveryPressure(
        pressure=ruling.pressure,
        ready_part=ruling.ready,
        latency_part=ruling.latency,
        send_bytes_part=ruling.send_bytes,
        step=_STEPS[ruling.step],
        step_ms=round((now_s - max(ruling.since_s, figures.start_s)) * 1000),
        reason=ruling.reason,
        window_us=round(ruling.window_s * 1_000_000),
        ready_topic_counts=figures.ready,
        longest_wait_ms=round(figures.longest_wait_s * 1000),
        scheduling_latency_us=round(figures.latency_s * 1_000_000),
        queued_bytes=figures.queued_bytes,
        served_record_counts=figures.served_records,
    )
