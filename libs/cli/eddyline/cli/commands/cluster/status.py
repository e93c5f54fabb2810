"""`eddyline status`: how the cluster does; exit code 1 while anything of it is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.cli.command import add_verb, connected
from eddyline.cli.commands.cluster.status_facts import cluster_state, role_state, troubles
from eddyline.cli.commands.cluster.status_page import status_lines
from eddyline.cli.commands.sources.source_fields import source_fields
from eddyline.cli.errors import EXIT_FAILED, EXIT_OK
from eddyline.cli.terminal.output import Json

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.command import Context, Subparsers
    from eddyline.cli.commands.cluster.status_facts import ClusterState
    from eddyline.client.admin.status import RoleStatus

_MORE: Final = """

Exit code 1 while a role is away, not ready or read-only, a source is stopped, paused, copied by no ingest, RECOVERING for
over a minute, or differs from its bucket or its sources file, or a fold is lost. Lines fit the terminal: columns that do not
are left out (JSON has them). Of several stores each is store/<shard>; ingest and delivery are ready here where they reach
all stores, and "serves" where they reach some (/ready and gRPC health say ready then).

JSON (-o json), an object a role: role, address, reachable, ready, state (ready, serves, read-only, recovering, not ready or
away), reason (why not; empty = it is), version, contract_version, pid, uptime_ms, metrics_address (where /metrics is
scraped; empty = nowhere), shard_index of a store (from 0, also of one that is away), and its figures:
  store     topic_count, source_count, wal_bytes, appended_count, apply_lag_bytes, instance, dropped_key_count,
            maintenance_stage, checkpoint, segment_count, segment_bytes, unsegmented_bytes, disk_free_bytes, memory_bytes,
            corrupt_count, wal_shards, shard_count, fold_count, lost_fold_count; while it recovers only
            replayed_bytes, total_bytes (0 = not known yet)
  ingest    source_count, nats_connected, verification_count, drifted_key_count
  delivery  draining, watch_count, topic_count, delivered_count, buffered_bytes; its pressure: pressure_percent,
            pressure_step (REST, COALESCE, SLOW_B0), pressure_step_ms, pressure_reason, of which ready_percent,
            latency_percent, send_bytes_percent; window_us, ready_topic_counts (B0 to B4), longest_wait_ms,
            scheduling_latency_us, queued_bytes
then an object a source: source (its name), and what `eddyline source list` has; last the verdict: well, troubles (a line
each), sources_known, sources_reason (why not). Counts of records, keys, gaps and corrupt pieces are since the start of their
role."""


def add(subparsers: Subparsers) -> None:
    add_verb(
        subparsers,
        "status",
        what="Show how the cluster does: roles, sources, disk, folds, watches; exit code 1 while anything is wrong.",
        example="eddyline status\neddyline status --cluster 127.0.0.1:7701 -o json",
        run=run,
        more=_MORE,
    )


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show the cluster."""
    async with connected(arguments, context) as client:
        facts = await cluster_state(client)
    found = troubles(facts)
    output = context.output
    if output.is_json:
        for fields in _objects(facts, found):
            output.print_result("", fields)
    else:
        output.print_text("\n".join(status_lines(facts, width=output.width)))
    return EXIT_FAILED if found else EXIT_OK


def duration_text(milliseconds: int) -> str:
    """A duration for people."""
    seconds = milliseconds // 1000
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _objects(facts: ClusterState, found: list[str]) -> list[dict[str, Json]]:
    objects = [_role_fields(role, facts.stores) for role in facts.roles]
    objects += [{"source": source.definition.name, **source_fields(source)} for source in facts.sources or ()]
    lines: list[Json] = [*found]
    objects.append(
        {
            "well": not found,
            "troubles": lines,
            "sources_known": facts.sources is not None,
            "sources_reason": facts.sources_reason,
        }
    )
    return objects


def _role_fields(status: RoleStatus, stores: list[str]) -> dict[str, Json]:
    return {
        "role": status.role,
        "address": status.address,
        "reachable": status.reachable,
        "ready": status.ready,
        "state": role_state(status, len(stores)),
        "reason": status.reason,
        "version": status.version,
        "contract_version": status.contract_version,
        "pid": status.pid,
        "uptime_ms": status.uptime_ms,
        "metrics_address": status.metrics_address,
        **({"shard_index": stores.index(status.address)} if status.role == "store" else {}),
        **dict(status.figures),
    }
