"""Ingest's part of GetStatus: readiness with its reason, and the sources that this replica copies and its caller may see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.auth.grant import caller
from eddyline.core.server.cluster_service import ReportedStatus
from eddyline.v1 import cluster_pb2

if TYPE_CHECKING:
    from eddyline.ingest.readiness import Readiness
    from eddyline.ingest.sources.ownership import Ownership
    from eddyline.ingest.verify.verify import Verifier


def ingest_status(readiness: Readiness, ownership: Ownership, verifier: Verifier) -> ReportedStatus:
    """The present status of this replica."""
    sources = []
    for name, held in sorted(ownership.held.items()):
        if not caller().covers(name):
            continue
        progress = held.progress
        sources.append(
            cluster_pb2.SourceHealth(
                source=name,
                state=progress.state,
                reason=progress.reason,
                since_ms=progress.since_ms,
                position_revision=progress.position_revision,
                lag=progress.lag,
                verified_ms=progress.verified_ms,
                drift_count=progress.drift_count,
            )
        )
    return ReportedStatus(
        ready=not readiness.reason,
        reason=readiness.reason,
        detail=cluster_pb2.IngestStatus(
            sources=sources,
            nats_connected=readiness.nats_connected,
            verification_count=verifier.verification_count,
            drifted_key_count=verifier.drifted_key_count,
        ),
    )
