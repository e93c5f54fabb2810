"""Metrics of a delivery role, all of which exist from the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.telemetry import names as telemetry
from eddyline.core.telemetry.metrics import MetricPoint, counter, counters, gauge, gauges, histogram, one_of
from eddyline.core.telemetry.server_metrics import ServerCounts, ServerNames, server_metrics
from eddyline.delivery.schedule.governor import LadderStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from eddyline.core.forwarding.stats import ForwardedCalls
    from eddyline.core.telemetry.metrics import Metric
    from eddyline.delivery.role import DeliveryRole
    from eddyline.delivery.stats import DeliveryStats


_SERVER: Final = ServerNames(
    connections=telemetry.DELIVERY_CONNECTIONS,
    opened_connections=telemetry.DELIVERY_OPENED_CONNECTIONS,
    ended_connections=telemetry.DELIVERY_ENDED_CONNECTIONS,
    calls=telemetry.DELIVERY_CALLS,
    opened_calls=telemetry.DELIVERY_OPENED_CALLS,
    reason=telemetry.LABEL_REASON,
)


async def delivery_metrics(
    role: DeliveryRole,
    forwarded: ForwardedCalls,
    certificate_expires_s: Callable[[], float] = float,
    server: Callable[[], ServerCounts] = ServerCounts,
) -> list[Metric]:
    """Collect all metrics now."""
    stats = role.stats
    lag = await role.lag()
    return [
        gauge(
            telemetry.DELIVERY_READY,
            "1 = the store is reached and followed, or one of several.",
            role.tails.up.is_set(),
        ),
        gauges(
            telemetry.DELIVERY_STORE_CONNECTED,
            "1 = that store is reached and followed.",
            (telemetry.LABEL_SHARD,),
            (MetricPoint(reached, (str(shard),)) for shard, reached in enumerate(role.tails.reached)),
        ),
        gauge(telemetry.DELIVERY_WATCHES, "Open watch streams.", stats.watch_count),
        gauge(telemetry.DELIVERY_FOLLOWED_TOPICS, "Topics followed at the store.", len(role.tails)),
        counter(telemetry.DELIVERY_DELIVERED_RECORDS, "Records sent, to all together.", stats.delivered_count),
        counter(telemetry.DELIVERY_DELIVERED_BYTES, "Bytes of frames sent, to all together.", stats.delivered_bytes),
        counter(
            telemetry.DELIVERY_ENCODED_FRAMES,
            "Frames encoded for the rings, each once for all that want the same.",
            role.budget.encoded_count,
        ),
        gauge(telemetry.DELIVERY_BUFFERED_BYTES, "Bytes held for fan-out, in all rings.", role.budget.nbytes),
        counter(
            telemetry.DELIVERY_CATCHUP_READS,
            "Reads of the store's log or fold, for subscribers that the rings could not serve.",
            sum(fetcher.read_count for fetcher in role.fetchers),
        ),
        histogram(
            telemetry.DELIVERY_LATENCY_SECONDS,
            "From a record's commit at the store to its place in a ring, once a frame.",
            stats.latency,
        ),
        gauge(
            telemetry.DELIVERY_LAG_RECORDS,
            "Records that the subscription lacks that is furthest behind, those too that filters hide.",
            lag.records,
        ),
        gauge(telemetry.DELIVERY_LAG_SECONDS, "Age of the oldest record that a subscription lacks.", lag.seconds),
        counters(
            telemetry.DELIVERY_FORWARDED_CALLS,
            "Calls of stores passed on to the owning one, by how they ended.",
            (telemetry.LABEL_SHARD, telemetry.LABEL_OUTCOME),
            forwarded.points(),
        ),
        counter(telemetry.DELIVERY_EXPORTED_SPANS, "Spans that a collector took.", role.tracer.exported_count),
        counter(telemetry.DELIVERY_DROPPED_SPANS, "Spans dropped: no room, or not taken.", role.tracer.dropped_count),
        gauge(
            telemetry.DELIVERY_CERTIFICATE_EXPIRATION,
            "When the role's certificate expires, in seconds since 1970; 0 = it has none.",
            certificate_expires_s(),
        ),
        *server_metrics(_SERVER, server()),
        *_scheduling(stats),
    ]


def _scheduling(stats: DeliveryStats) -> list[Metric]:
    """Metrics of turns, bands and pressure."""
    reading = stats.reading
    band = (telemetry.LABEL_BAND,)
    return [
        gauge(telemetry.DELIVERY_PRESSURE, "Pressure as last sampled, 0 to 1.", reading.pressure),
        one_of(
            telemetry.DELIVERY_PRESSURE_STEP,
            "What is done about it: 1 for that step.",
            telemetry.LABEL_STEP,
            (step.name for step in LadderStep),
            reading.step.name,
        ),
        gauges(
            telemetry.DELIVERY_READY_TOPICS,
            "Topics that wait for their turn.",
            band,
            (MetricPoint(count, (f"B{number}",)) for number, count in enumerate(stats.ready)),
        ),
        counters(
            telemetry.DELIVERY_SERVED_RECORDS,
            "Records that turns delivered, once for each subscription.",
            band,
            (MetricPoint(count, (f"B{number}",)) for number, count in enumerate(stats.served_records)),
        ),
        counter(telemetry.DELIVERY_TURNS, "Turns of topics.", stats.turn_count),
        counter(telemetry.DELIVERY_TURN_WAIT_SECONDS, "How long topics waited for their turns.", stats.turn_wait_s),
        gauge(telemetry.DELIVERY_SCHEDULING_SECONDS, "The same, as a moving average a turn.", stats.latency_s),
        gauge(
            telemetry.DELIVERY_LONGEST_WAIT_SECONDS,
            "How long the topic has waited that waits longest.",
            stats.longest_wait_s,
        ),
        gauge(telemetry.DELIVERY_QUEUED_BYTES, "Bytes under way to subscribers.", stats.queued_bytes),
    ]
