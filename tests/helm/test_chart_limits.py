"""Limits of the chart against what roles plan with: a pod that would be killed, or serve nothing, is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.delivery.config import BUFFER_BYTES, WATCHES_MAX, WATCHES_MAX_MAX
from eddyline.ingest.config import STOP_GRACE_MS as INGEST_GRACE_MS
from eddyline.store.config import DISK_FLOOR_BYTES, MEMORY_BYTES_MIN, STOP_GRACE_MS, WAL_FILE_BYTES
from eddyline.store.limits.memory_guard import PROCESS_BYTES
from tests.support.kubernetes.helm import CHART, PACKED, HelmFailed, environ, pods, rendered

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
STREAM_BYTES = 27 << 10
"""An idle watch stream: services/delivery/README.md."""
DELIVERY_BYTES = 128 << 20
"""The process itself: 64 MiB before its first stream, and as much again for what is under way."""
RECEIVED_BYTES = 256 << 20
"""Some of what gRPC receives at one moment: services/store/README.md."""
VALUE_SETS = [None, *sorted((CHART / "ci").glob("*.yaml"))]


def takes(*sets: str, major: int = 4) -> bool:
    """Whether the chart takes these values; refused are they by a limit's name."""
    try:
        rendered(major, sets=sets)
    except HelmFailed as refused:
        assert any(word in str(refused) for word in ("limits.memory", "storage.size", "terminationGraceSeconds"))
        return False
    return True


@pytest.mark.parametrize("major", PACKED)
@pytest.mark.parametrize("budget_mib", [256, 1024, 5000])
def test_store_limit_below_its_budget_and_reserve_is_refused(major: int, budget_mib: int) -> None:
    bound_mib = budget_mib + PROCESS_BYTES // MIB
    budget = f"store.memoryBytes={budget_mib}Mi"
    assert takes(budget, f"store.resources.limits.memory={bound_mib}Mi", major=major)
    assert not takes(budget, f"store.resources.limits.memory={bound_mib - 1}Mi", major=major)


@pytest.mark.parametrize("limit", ["2Gi", "2147483648", "2.0Gi", "2e9", "2100M"])
def test_limit_is_read_however_kubernetes_takes_it(limit: str) -> None:
    assert takes(f"store.resources.limits.memory={limit}")
    assert not takes(f"store.resources.limits.memory={limit}", "store.memoryBytes=2Gi")


def test_limit_that_is_none_is_refused_and_no_limit_is_none() -> None:
    with pytest.raises(HelmFailed, match=r"limits\.memory is lots, not a quantity"):
        rendered(sets=["store.resources.limits.memory=lots"])
    assert takes("store.resources.limits=null", "store.memoryBytes=64Gi")


def test_budget_below_what_a_store_takes_is_refused() -> None:
    assert takes(f"store.memoryBytes={MEMORY_BYTES_MIN // MIB}Mi")
    with pytest.raises(HelmFailed, match="memoryBytes"):
        rendered(sets=[f"store.memoryBytes={MEMORY_BYTES_MIN // MIB - 1}Mi"])


@pytest.mark.parametrize(
    ("sets", "planned"),
    [
        ((), BUFFER_BYTES + WATCHES_MAX * STREAM_BYTES),
        (("delivery.settings.BUFFER_BYTES=1Gi",), (1 << 30) + WATCHES_MAX * STREAM_BYTES),
        (("delivery.settings.BUFFER_BYTES=1073741824",), (1 << 30) + WATCHES_MAX * STREAM_BYTES),
        (("delivery.settings.WATCHES_MAX=1000",), BUFFER_BYTES + 1000 * STREAM_BYTES),
        (("delivery.settings.WATCHES_MAX=0",), BUFFER_BYTES + WATCHES_MAX_MAX * STREAM_BYTES),
    ],
)
def test_deliverys_limit_below_its_rings_and_streams_is_refused(sets: tuple[str, ...], planned: int) -> None:
    needed = planned + DELIVERY_BYTES
    assert takes(*sets, f"delivery.resources.limits.memory={needed}")
    assert not takes(*sets, f"delivery.resources.limits.memory={needed - 1}")


def test_volume_that_has_no_room_above_the_disk_floor_is_refused() -> None:
    floor = (DISK_FLOOR_BYTES + 2 * WAL_FILE_BYTES) // MIB
    assert takes(f"store.storage.size={floor + 1}Mi")
    assert not takes(f"store.storage.size={floor}Mi")
    assert takes(f"store.storage.size={floor}Mi", "store.settings.DISK_FLOOR_BYTES=64Mi")
    assert not takes(f"store.storage.size={floor + 1}Mi", "store.settings.WAL_SHARDS=2")
    assert not takes("store.storage.size=1Gi", "store.settings.WAL_FILE_BYTES=1Gi")


@pytest.mark.parametrize(
    ("role", "grace_ms"), [("store", STOP_GRACE_MS), ("ingest", INGEST_GRACE_MS), ("delivery", 15_000)]
)
def test_pod_that_would_be_killed_while_it_drains_is_refused(role: str, grace_ms: int) -> None:
    needed = 7 + grace_ms // 1000 + 5
    drain = f"{role}.drainSeconds=7"
    assert takes(drain, f"{role}.terminationGraceSeconds={needed}")
    assert not takes(drain, f"{role}.terminationGraceSeconds={needed - 1}")
    assert not takes(drain, f"{role}.terminationGraceSeconds={needed}", f"{role}.settings.STOP_GRACE_MS=60000")


@pytest.mark.parametrize("values", VALUE_SETS, ids=lambda path: path.stem if path else "default")
def test_stores_limit_of_each_value_set_has_room_for_what_grpc_receives_too(values: Path | None) -> None:
    (pod,) = [pod for role, pod in pods(rendered(values=[values] if values else [])) if role == "store"]
    limit = pod["containers"][0]["resources"]["limits"]["memory"]
    limit_bytes = int(limit.removesuffix("Gi")) << 30
    assert int(environ(pod)["EDDYLINE_STORE_MEMORY_BYTES"]) + PROCESS_BYTES + RECEIVED_BYTES <= limit_bytes
