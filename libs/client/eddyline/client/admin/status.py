"""How each role does: its own words from GetStatus, or why it did not answer; and whether it is ready, from gRPC health."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import grpc
from grpc_health.v1 import health_pb2

from eddyline.client.transport.call import call_once
from eddyline.core.errors import EddylineError
from eddyline.v1 import cluster_pb2, cluster_pb2_grpc

if TYPE_CHECKING:
    from eddyline.client.transport.topology import Channels, Topology

RoleName = Literal["store", "ingest", "delivery"]
STATUS_TIMEOUT_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """One role at one moment. Not `reachable`: `reason` says why, the rest is empty. `figures` by the contract's names.

    `metrics_address` empty = its metrics are scraped nowhere.
    A store that recovers has the figures `replayed_bytes` and `total_bytes` instead (0 = not known yet).
    """

    role: RoleName
    address: str
    reachable: bool
    ready: bool
    reason: str
    version: str = ""
    contract_version: str = ""
    pid: int = 0
    uptime_ms: int = 0
    metrics_address: str = ""
    figures: tuple[tuple[str, int | bool | str], ...] = ()


async def role_statuses(channels: Channels, topology: Topology) -> tuple[RoleStatus, ...]:
    """Ask every role of the cluster, all at once; one that does not answer is in the list too."""
    wanted: list[tuple[RoleName, str]] = [("store", address) for address in topology.stores]
    wanted += [("ingest", address) for address in topology.ingests]
    wanted += [("delivery", address) for address in topology.deliveries]
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(role_status(channels.to(address), role, address)) for role, address in wanted]
    return tuple(task.result() for task in calls)


async def role_status(channel: grpc.aio.Channel, role: RoleName, address: str) -> RoleStatus:
    """Ask one role."""
    stub = cluster_pb2_grpc.ClusterServiceStub(channel)
    try:
        answer = await call_once(stub.GetStatus(cluster_pb2.GetStatusRequest(), timeout=STATUS_TIMEOUT_S))
    except EddylineError as error:
        return RoleStatus(role, address, reachable=False, ready=False, reason=f"{error.reason}: {error.message}")
    return RoleStatus(
        role,
        address,
        reachable=True,
        ready=answer.ready,
        reason=answer.reason,
        version=answer.version,
        contract_version=answer.contract_version,
        pid=answer.pid,
        uptime_ms=answer.uptime_ms,
        metrics_address=answer.metrics_address,
        figures=_figures(answer),
    )


async def is_ready(channel: grpc.aio.Channel) -> bool:
    """True = the role says that it serves (gRPC health, the empty service name)."""
    # The generated stub is typed for blocking channels only.
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    try:
        answer = await check(health_pb2.HealthCheckRequest(service=""), timeout=STATUS_TIMEOUT_S)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _figures(answer: cluster_pb2.GetStatusResponse) -> tuple[tuple[str, int | bool | str], ...]:
    match answer.WhichOneof("detail"):
        case "store":
            return _store_figures(answer.store)
        case "ingest":
            ingest = answer.ingest
            return (
                ("source_count", len(ingest.sources)),
                ("nats_connected", ingest.nats_connected),
                ("verification_count", ingest.verification_count),
                ("drifted_key_count", ingest.drifted_key_count),
            )
        case "delivery":
            return _delivery_figures(answer.delivery)
        case _:
            return ()


def _delivery_figures(delivery: cluster_pb2.DeliveryStatus) -> tuple[tuple[str, int | bool | str], ...]:
    pressure = delivery.pressure
    return (
        ("draining", delivery.draining),
        ("watch_count", delivery.watch_count),
        ("topic_count", delivery.topic_count),
        ("delivered_count", delivery.delivered_count),
        ("buffered_bytes", delivery.buffered_bytes),
        ("pressure_percent", round(100 * pressure.pressure)),
        ("pressure_step", _step_name(pressure.step)),
        ("pressure_step_ms", pressure.step_ms),
        ("pressure_reason", pressure.reason),
        ("ready_percent", round(100 * pressure.ready_part)),
        ("latency_percent", round(100 * pressure.latency_part)),
        ("send_bytes_percent", round(100 * pressure.send_bytes_part)),
        ("window_us", pressure.window_us),
        ("ready_topic_counts", " ".join(str(count) for count in pressure.ready_topic_counts)),
        ("longest_wait_ms", pressure.longest_wait_ms),
        ("scheduling_latency_us", pressure.scheduling_latency_us),
        ("queued_bytes", pressure.queued_bytes),
    )


def _store_figures(store: cluster_pb2.StoreStatus) -> tuple[tuple[str, int | bool | str], ...]:
    if store.HasField("recovery"):
        recovery = store.recovery
        return (("replayed_bytes", recovery.replayed_bytes), ("total_bytes", recovery.total_bytes))
    return (
        ("topic_count", store.topic_count),
        ("source_count", store.source_count),
        ("wal_bytes", store.wal_bytes),
        ("appended_count", store.appended_count),
        ("apply_lag_bytes", store.apply_lag_bytes),
        ("instance", store.instance),
        ("dropped_key_count", store.dropped_key_count),
        ("maintenance_stage", _stage_name(store.maintenance_stage)),
        ("checkpoint", store.checkpoint),
        ("segment_count", store.segment_count),
        ("segment_bytes", store.segment_bytes),
        ("unsegmented_bytes", store.unsegmented_bytes),
        ("disk_free_bytes", store.disk_free_bytes),
        ("memory_bytes", store.memory_bytes),
        ("corrupt_count", store.corrupt_count),
        ("wal_shards", store.wal_shards),
        ("shard_index", store.shard_index),
        ("shard_count", store.shard_count),
        ("fold_count", store.fold_count),
        ("lost_fold_count", store.lost_fold_count),
    )


def _step_name(number: cluster_pb2.PressureStep.ValueType) -> str:
    # An open set, likewise.
    known = number in cluster_pb2.PressureStep.values()
    return (cluster_pb2.PressureStep.Name(number) if known else str(number)).removeprefix("PRESSURE_STEP_")


def _stage_name(number: cluster_pb2.MaintenanceStage.ValueType) -> str:
    # An open set: a newer store may know more.
    known = number in cluster_pb2.MaintenanceStage.values()
    name = cluster_pb2.MaintenanceStage.Name(number) if known else str(number)
    return name.removeprefix("MAINTENANCE_STAGE_")
