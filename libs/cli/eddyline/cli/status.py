"""`eddyline status`: how each role does; exit code 1 unless all are ready."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from eddyline.cli.failure import EXIT_FAILED, EXIT_OK
from eddyline.cli.output import Json
from eddyline.cli.progress import share
from eddyline.cli.quantity import shown_size
from eddyline.cli.verb import add_verb, connected
from eddyline.core.errors import StoreUnreachable

if TYPE_CHECKING:
    import argparse

    from eddyline.cli.verb import Context, Subparsers
    from eddyline.client.status import RoleStatus

Figure = int | bool | str
_HEADER = ("ROLE", "ADDRESS", "METRICS", "STATE", "PID", "UP", "VERSION", "FIGURES")


_AWAY: Final = re.compile(r"([A-Z_]+) \(shard ([0-9]+)\)")
"""A reason of ingest or delivery that is one store's, of several."""
_MORE: Final = """

Of several stores each is store/<shard>. Ingest and delivery are ready here where they reach all stores; where they reach
some they serve these (/ready and gRPC health say so), and STATE has "serves; store/1 away".

JSON (-o json), an object a role: role, address, reachable, ready, reason (why not; empty = it is), version,
contract_version, pid, uptime_ms, metrics_address (where /metrics is scraped; empty = nowhere), shard_index of a store
(from 0, also of one that is away), and its figures:
  store     topic_count, source_count, wal_bytes, appended_count, apply_lag_bytes, instance, dropped_key_count,
            maintenance_stage, checkpoint, segment_count, segment_bytes, unsegmented_bytes, disk_free_bytes, memory_bytes,
            corrupt_count, wal_shards, shard_count; while it recovers only replayed_bytes,
            total_bytes (0 = not known yet)
  ingest    source_count, nats_connected, verification_count, drifted_key_count
  delivery  draining, watch_count, topic_count, delivered_count, buffered_bytes; its pressure: pressure_percent,
            pressure_step (REST, COALESCE, SLOW_B0), pressure_step_ms, pressure_reason, of which ready_percent,
            latency_percent, send_bytes_percent; window_us, ready_topic_counts (B0 to B4), longest_wait_ms,
            scheduling_latency_us, queued_bytes"""


def add(subparsers: Subparsers) -> None:
    """Add the verb."""
    add_verb(
        subparsers,
        "status",
        what="Show how each role does; exit code 1 unless all are ready.",
        example="eddyline status\neddyline status --cluster 127.0.0.1:7701 -o json",
        run=run,
        more=_MORE,
    )


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Show the roles."""
    async with connected(arguments, context) as client:
        statuses = await client.statuses()
    stores = [status.address for status in statuses if status.role == "store"]
    context.output.table(
        _HEADER, [_row(status, stores) for status in statuses], [_fields(status, stores) for status in statuses]
    )
    return EXIT_OK if all(status.ready for status in statuses) else EXIT_FAILED


def shown_duration(milliseconds: int) -> str:
    """A duration for people."""
    seconds = milliseconds // 1000
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def state_text(status: RoleStatus, store_count: int) -> str:
    """A role's state, and why it is not ready, in words."""
    if status.ready:
        return "ready"
    away = _AWAY.findall(status.reason)
    if status.reachable and not _AWAY.sub("", status.reason).strip() and 0 < len(away) < store_count:
        told = [f"store/{shard} {'away' if reason == StoreUnreachable.reason else reason}" for reason, shard in away]
        return f"serves; {', '.join(told)}"
    state = "not ready" if status.reachable else "away"
    return f"{state}: {status.reason.partition(':')[0]}" if status.reason else state


def _row(status: RoleStatus, stores: list[str]) -> tuple[str, ...]:
    numbered = status.role == "store" and len(stores) > 1
    texts = {"store": _store_text, "delivery": _delivery_text}
    figures = texts.get(status.role, _plain_text)(dict(status.figures))
    return (
        f"store/{stores.index(status.address)}" if numbered else status.role,
        status.address,
        status.metrics_address or "-",
        state_text(status, len(stores)),
        str(status.pid or "-"),
        shown_duration(status.uptime_ms) if status.reachable else "-",
        status.version or "-",
        figures or "-",
    )


def _plain_text(figures: dict[str, Figure]) -> str:
    return "  ".join(f"{name}={value}" for name, value in figures.items())


def _delivery_text(figures: dict[str, Figure]) -> str:
    """Delivery's figures for people: of its pressure more only where something is done about it."""
    if not figures:
        return ""
    parts = [
        f"watches={figures['watch_count']}",
        f"topics={figures['topic_count']}",
        f"delivered={figures['delivered_count']}",
        f"buffered={shown_size(int(figures['buffered_bytes']))}",
        f"pressure={figures['pressure_percent']} %",
    ]
    if figures["pressure_step"] not in ("REST", "UNSPECIFIED"):
        since = shown_duration(int(figures["pressure_step_ms"]))
        parts.append(f"{str(figures['pressure_step']).lower()} for {since} ({figures['pressure_reason']})")
        parts.append(f"ready={figures['ready_topic_counts']}")
        parts.append(f"longest_wait={figures['longest_wait_ms']} ms")
    return "  ".join(parts)


def _store_text(figures: dict[str, Figure]) -> str:
    """A store's figures for people: sizes in units, and what should be 0 only where it is not."""
    if "total_bytes" in figures:
        done, total = int(figures["replayed_bytes"]), int(figures["total_bytes"])
        return f"recovering  {share(done, total)}  {shown_size(done)} of {shown_size(total) if total else '…'} replayed"
    if not figures:
        return ""

    def size(name: str) -> str:
        return shown_size(int(figures[f"{name}_bytes"]))

    shards = int(figures["shard_count"])
    parts = [
        *([f"shard={figures['shard_index']} of {shards}"] if shards > 1 else []),
        f"topics={figures['topic_count']}",
        f"sources={figures['source_count']}",
        f"appended={figures['appended_count']}",
        f"wal={size('wal')}",
        f"segments={figures['segment_count']} ({size('segment')})",
        f"unsegmented={size('unsegmented')}",
        f"memory={size('memory')}",
        f"disk_free={size('disk_free')}",
        f"checkpoint={figures['checkpoint']}",
        f"upkeep={str(figures['maintenance_stage']).lower()}",
    ]
    troubles = ("apply_lag_bytes", "dropped_key_count", "corrupt_count")
    parts += (f"{name}={figures[name]}" for name in troubles if figures[name])
    return "  ".join(parts)


def _fields(status: RoleStatus, stores: list[str]) -> dict[str, Json]:
    return {
        "role": status.role,
        "address": status.address,
        "reachable": status.reachable,
        "ready": status.ready,
        "reason": status.reason,
        "version": status.version,
        "contract_version": status.contract_version,
        "pid": status.pid,
        "uptime_ms": status.uptime_ms,
        "metrics_address": status.metrics_address,
        **({"shard_index": stores.index(status.address)} if status.role == "store" else {}),
        **dict(status.figures),
    }
