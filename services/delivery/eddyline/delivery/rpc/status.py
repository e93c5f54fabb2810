"""State of a delivery role in GetStatus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.errors import Draining
from eddyline.core.server.cluster_service import ReportedStatus
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


def delivery_status(stats: DeliveryStats, *, tails: AllTails, budget: RingBudget, clock: Clock) -> ReportedStatus:
    """Return the role's state: ready = all stores are followed, and the role is not draining."""
    reason = Draining.reason if stats.draining else tails.trouble
    return ReportedStatus(
        ready=not reason,
        reason=reason,
        detail=cluster_pb2.DeliveryStatus(
            watch_count=stats.watch_count,
            topic_count=len(tails),
            delivered_count=stats.delivered_count,
            buffered_bytes=budget.nbytes,
            pressure=_pressure(stats, clock.monotonic_s()),
            draining=stats.draining,
        ),
    )


def _pressure(stats: DeliveryStats, now_s: float) -> cluster_pb2.DeliveryPressure:
    reading = stats.reading
    return cluster_pb2.DeliveryPressure(
        pressure=reading.pressure,
        ready_part=reading.ready,
        latency_part=reading.latency,
        send_bytes_part=reading.send_bytes,
        step=_STEPS[reading.step],
        step_ms=round((now_s - max(reading.since_s, stats.start_s)) * 1000),
        reason=reading.reason,
        window_us=round(reading.window_s * 1_000_000),
        ready_topic_counts=stats.ready,
        longest_wait_ms=round(stats.longest_wait_s * 1000),
        scheduling_latency_us=round(stats.latency_s * 1_000_000),
        queued_bytes=stats.queued_bytes,
        served_record_counts=stats.served_records,
    )
