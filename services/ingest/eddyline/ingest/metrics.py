"""Metrics of an ingest replica: its connections, and each source that it copies, all series from the start.

A source has series while this replica has its lease; its counts begin at zero with each lease.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from eddyline.core.telemetry import names as telemetry
from eddyline.core.telemetry.metrics import MetricPoint, counter, counters, gauge, gauges, histogram
from eddyline.core.telemetry.server_metrics import ServerCounts, ServerNames, server_metrics
from eddyline.ingest.copy.progress import STATES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eddyline.core.forwarding.stats import ForwardedCalls
    from eddyline.core.telemetry.metrics import Metric
    from eddyline.ingest.copy.progress import CopyProgress, SourceCounts
    from eddyline.ingest.role import IngestRole

LISTED_SOURCES_MAX: Final = 1_000
"""Prometheus clients have no bound. So many have 25 series each, a text of 2 MB; by name, so that the same ones are listed
each time."""

_SERVER: Final = ServerNames(
    connections=telemetry.INGEST_CONNECTIONS,
    opened_connections=telemetry.INGEST_OPENED_CONNECTIONS,
    ended_connections=telemetry.INGEST_ENDED_CONNECTIONS,
    calls=telemetry.INGEST_CALLS,
    opened_calls=telemetry.INGEST_OPENED_CALLS,
    reason=telemetry.LABEL_REASON,
)


async def ingest_metrics(
    role: IngestRole,
    forwarded: ForwardedCalls,
    certificate_expires_s: Callable[[], float] = float,
    server: Callable[[], ServerCounts] = ServerCounts,
) -> list[Metric]:
    """All metrics at present; yields to the event loop between the metrics of sources, which may be many."""
    held = role.ownership.held
    listed = {name: held[name].progress for name in sorted(held)[:LISTED_SOURCES_MAX]}
    made = [
        gauge(telemetry.INGEST_READY, "1 = NATS is reached, and the store or one of several.", role.readiness.ready),
        gauge(telemetry.INGEST_NATS_CONNECTED, "1 = connected to NATS.", role.readiness.nats_connected),
        gauges(
            telemetry.INGEST_STORE_CONNECTED,
            "1 = that store answers.",
            (telemetry.LABEL_SHARD,),
            (MetricPoint(reached, (str(shard),)) for shard, reached in enumerate(role.readiness.stores_reached)),
        ),
        gauge(telemetry.INGEST_LEASES, "Sources that this replica copies.", len(held)),
        gauge(
            telemetry.INGEST_UNLISTED_SOURCES,
            "Of them those without series of their own: too many.",
            len(held) - len(listed),
        ),
        histogram(telemetry.INGEST_APPLY_SECONDS, "A batch given to the store, until it is settled.", role.apply_s),
        counter(
            telemetry.INGEST_VERIFICATIONS,
            "Comparisons of a source's fold with its bucket.",
            role.verifier.verification_count,
        ),
        counter(telemetry.INGEST_DRIFTED_KEYS, "Keys that they found to differ.", role.verifier.drifted_key_count),
        counters(
            telemetry.INGEST_FORWARDED_CALLS,
            "Calls of stores passed on to the owning one, by how they ended.",
            (telemetry.LABEL_SHARD, telemetry.LABEL_OUTCOME),
            forwarded.points(),
        ),
        counter(telemetry.INGEST_EXPORTED_SPANS, "Spans that a collector took.", role.tracer.exported_count),
        counter(telemetry.INGEST_DROPPED_SPANS, "Spans dropped: no room, or not taken.", role.tracer.dropped_count),
        gauge(
            telemetry.INGEST_CERTIFICATE_EXPIRATION,
            "When the role's certificate expires, in seconds since 1970; 0 = it has none.",
            certificate_expires_s(),
        ),
        *server_metrics(_SERVER, server()),
    ]
    for metric in chain(_source_gauges(listed), _source_counters(listed)):
        made.append(metric)
        await asyncio.sleep(0)
    return made


def _source_gauges(listed: dict[str, CopyProgress]) -> Iterator[Metric]:
    yield gauges(
        telemetry.INGEST_SOURCE_STATE,
        "1 for the state that a source is in.",
        (telemetry.LABEL_SOURCE, telemetry.LABEL_STATE),
        (MetricPoint(progress.state == state, (name, state)) for name, progress in listed.items() for state in STATES),
    )

    def each(metric: str, meaning: str, value: Callable[[CopyProgress], float]) -> Metric:
        points = (MetricPoint(value(progress), (name,)) for name, progress in listed.items())
        return gauges(metric, meaning, (telemetry.LABEL_SOURCE,), points)

    yield each(telemetry.INGEST_SOURCE_STATE_SECONDS, "Time in this state.", lambda progress: progress.since_ms / 1000)
    yield each(
        telemetry.INGEST_SOURCE_POSITION,
        "Revision up to which everything is applied.",
        attrgetter("position_revision"),
    )
    yield each(
        telemetry.INGEST_SOURCE_LAG,
        "Revisions not applied yet, as last seen; of a stream made again all of it.",
        attrgetter("lag"),
    )
    yield each(
        telemetry.INGEST_SOURCE_LAG_SECONDS,
        "Seconds since the source was last caught up; 0 = it is caught up.",
        attrgetter("lag_s"),
    )
    yield each(
        telemetry.INGEST_SOURCE_REPORT_SECONDS,
        "Time since the store took a report of it.",
        attrgetter("report_age_s"),
    )
    yield each(
        telemetry.INGEST_SOURCE_DRIFTED_KEYS,
        "Keys that differed when it was last verified.",
        attrgetter("drift_count"),
    )
    yield each(
        telemetry.INGEST_SOURCE_LOSSY_SETTINGS,
        "Settings of its bucket or stream that let revisions go before they are read; 0 = none.",
        lambda progress: len(progress.loss_warnings),
    )
    yield each(
        telemetry.INGEST_SOURCE_FILE_DRIFT,
        "1 = it differs from the sources file.",
        lambda progress: bool(progress.file_drift),
    )


def _source_counters(listed: dict[str, CopyProgress]) -> Iterator[Metric]:
    def each(metric: str, meaning: str, value: Callable[[SourceCounts], int]) -> Metric:
        points = (MetricPoint(value(progress.counts), (name,)) for name, progress in listed.items())
        return counters(metric, meaning, (telemetry.LABEL_SOURCE,), points)

    yield each(
        telemetry.INGEST_APPLIED_RECORDS,
        "Records that the store took, gaps and synthetic deletes too.",
        attrgetter("applied"),
    )
    yield each(telemetry.INGEST_CONSUMERS, "Consumers made at NATS to copy it.", attrgetter("consumers"))
    yield each(
        telemetry.INGEST_RESYNCS,
        "Key sets compared, or a stream taken as it is.",
        attrgetter("resyncs"),
    )
    yield each(telemetry.INGEST_GAPS, "Gaps reported.", attrgetter("gaps"))
    yield each(
        telemetry.INGEST_SYNTHETIC_DELETES,
        "Deletes of keys that left without a message.",
        attrgetter("synthetic_deletes"),
    )
    yield each(telemetry.INGEST_DEAD_LETTERS, "Messages that fitted into no record.", attrgetter("dead_letters"))
