"""`eddyline status` judges the cluster: what is wrong first, the same facts for people and programs, within a width."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from eddyline.cli.commands.cluster import status_facts
from eddyline.cli.commands.cluster.status_facts import ClusterState, role_state, stores_away, troubles
from eddyline.cli.commands.cluster.status_page import status_lines
from eddyline.client.admin.sources import Source
from eddyline.client.admin.status import RoleStatus
from eddyline.core.model.source import SourceDefinition, SourceDetail
from eddyline.store.stats import ShardStatus, Stage
from tests.support.cluster.processes import store_server
from tests.support.command_line import command_at, command_on_a_door
from tests.support.ingest.served import served_ingest
from tests.support.nats.server import running_nats
from tests.support.store.scripted_shard import ScriptedShard

if TYPE_CHECKING:
    from eddyline.client.admin.status import RoleName

Figures = dict[str, int | bool | str]


def figures_of(figures: Figures) -> tuple[tuple[str, int | bool | str], ...]:
    """Figures as a role's status has them."""
    return tuple(figures.items())


GOLDEN: Final = Path(__file__).parents[3] / "golden"
STORE: Final = RoleStatus(
    "store",
    "eddyline-store-0.eddyline-store:7701",
    reachable=True,
    ready=True,
    reason="",
    version="0.1.0",
    contract_version="1.4.0",
    pid=5413,
    uptime_ms=11_100_000,
    metrics_address="eddyline-store-0:7711",
    figures=figures_of(
        {
            "topic_count": 12,
            "source_count": 3,
            "wal_bytes": 72_456_601,
            "appended_count": 1_234_567,
            "apply_lag_bytes": 2048,
            "instance": 4,
            "dropped_key_count": 0,
            "maintenance_stage": "MERGE",
            "checkpoint": 7,
            "segment_count": 8,
            "segment_bytes": 64 << 20,
            "unsegmented_bytes": 10 << 20,
            "disk_free_bytes": 12 << 30,
            "memory_bytes": 220 << 20,
            "corrupt_count": 2,
            "wal_shards": 1,
            "shard_index": 0,
            "shard_count": 1,
            "fold_count": 5,
            "lost_fold_count": 1,
        }
    ),
)
INGEST: Final = RoleStatus(
    "ingest",
    "eddyline-ingest:7702",
    reachable=True,
    ready=True,
    reason="",
    version="0.1.0",
    pid=6663,
    uptime_ms=11_000_000,
    metrics_address="eddyline-ingest:7712",
    figures=(("source_count", 3), ("nats_connected", True), ("verification_count", 4), ("drifted_key_count", 1)),
)
DELIVERY_FIGURES: Final[Figures] = {
    "draining": False,
    "watch_count": 209,
    "topic_count": 11,
    "delivered_count": 5_000_000,
    "buffered_bytes": 3 << 20,
    "pressure_percent": 71,
    "pressure_step": "COALESCE",
    "pressure_step_ms": 4_000,
    "pressure_reason": "topics that wait",
    "ready_topic_counts": "1 2 3 4 5",
    "longest_wait_ms": 120,
}
DELIVERY: Final = RoleStatus(
    "delivery",
    "eddyline-delivery:7703",
    reachable=True,
    ready=True,
    reason="",
    version="0.1.0",
    pid=6665,
    uptime_ms=59_000,
    figures=figures_of(DELIVERY_FIGURES),
)
AWAY: Final = RoleStatus(
    "delivery",
    "eddyline-delivery-1:7703",
    reachable=False,
    ready=False,
    reason="NOT_READY: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.9:7703: Failed to connect to "
    "remote host: Connection refused",
)
LIVE: Final = Source(
    SourceDefinition("certs", "certs", "certs"), "LIVE", "", 500, 500, 0, "i-0", 900, 500, epoch=1, changed_ms=2_000
)
AHEAD: Final = replace(
    LIVE,
    definition=SourceDefinition("routes-of-the-region", "routes", "routes"),
    status="CURSOR_AHEAD",
    reason="the stream ends at 470, the position is 500: it was rolled back; `eddyline source resync` takes what is there",
    last_revision=470,
    lag=470,
    gap_count=1,
    gap_ms=5_000,
    changed_ms=300_000,
)
COPYING: Final = replace(
    LIVE,
    definition=SourceDefinition("events", "events", stream="EVENTS"),
    status="SNAPSHOT",
    position_revision=10_000,
    last_revision=100_000,
    lag=90_000,
    detail=SourceDetail(revisions_per_s=12_000, remaining_ms=7_500),
)
FACTS: Final = ClusterState(
    (STORE, INGEST, DELIVERY, AWAY), (LIVE, AHEAD, COPYING), "", ("sources.toml names orders, which is not there",)
)
FIGURES: Final = ShardStatus(
    1, 0, 2048, 3, 0, 5, 0, "", Stage.MERGE, 7, 8, 64 << 20, 10, 11, 12, 13, 2, fold_count=1, lost_fold_count=0
)


@pytest.mark.parametrize("width", [80, 120])
def test_page_is_the_golden_one_and_fits(width: int) -> None:
    lines = status_lines(FACTS, width=width)
    assert "\n".join(lines) + "\n" == (GOLDEN / f"status_{width}.txt").read_text(encoding="utf-8")
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [50, 60, 100, 200])
def test_page_fits_any_terminal_and_keeps_what_must_be_known(width: int) -> None:
    lines = status_lines(FACTS, width=width)
    assert max(map(len, lines)) <= width
    said = " ".join(" ".join(lines).split())
    for fact in (
        "CURSOR_AHEAD",
        "500 of 470",
        "5 min ago",
        "69.1MiB",
        "12GiB free",
        "209 watches",
        "5 folds",
        "since the start",
    ):
        assert fact in said


def test_faults_come_first_and_set_the_exit_code() -> None:
    found = troubles(FACTS)
    assert len(found) == 4
    assert "delivery at eddyline-delivery-1:7703 is away: Failed to connect to remote host: Connection refused" in found
    assert "store at eddyline-store-0.eddyline-store:7701 has lost 1 fold: their topics answer FOLD_LOST" in found
    assert status_lines(FACTS, width=200)[:2] == ["4 troubles:", f"  ! {found[0]}"]
    well = ClusterState((INGEST, DELIVERY), (LIVE, COPYING))
    assert troubles(well) == []
    assert status_lines(well, width=80)[0] == "all is well: 2 roles, 2 sources"


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({"status": "SOURCE_LOST", "reason": "no bucket certs"}, "source certs is SOURCE_LOST: no bucket certs"),
        ({"status": "STREAM_RECREATED"}, "source certs is STREAM_RECREATED"),
        ({"status": "CURSOR_EXPIRED"}, "source certs is CURSOR_EXPIRED"),
        ({"status": "OVERSIZE"}, "source certs is OVERSIZE"),
        ({"paused": True}, "source certs is PAUSED"),
        ({"holder": ""}, "source certs is not copied by any ingest"),
        ({"status": "RECOVERING", "detail": SourceDetail(state_ms=61_000)}, "source certs is RECOVERING for 1 min 1 s"),
        ({"status": "RECOVERING", "detail": SourceDetail(state_ms=2_000)}, ""),
        ({"detail": SourceDetail(drift_count=2, verified_ms=5_000)}, "source certs drifts: 2 keys differed 5 s ago"),
        ({"detail": SourceDetail(file_drift="on_expired")}, "source certs drifts from its file: on_expired"),
        ({"detail": SourceDetail(warnings=("history is 1",))}, ""),
        ({"status": "CATCHING_UP", "lag": 5}, ""),
    ],
)
def test_stopped_lost_or_drifting_source_is_a_fault(change: dict[str, object], trouble: str) -> None:
    facts = ClusterState((), (replace(LIVE, **change),))  # type: ignore[arg-type]  # as the fields are
    assert troubles(facts) == ([trouble] if trouble else [])


@pytest.mark.parametrize(
    ("role", "reason", "state", "away"),
    [
        ("delivery", "STORE_UNREACHABLE (shard 1)", "serves", "store/1 away"),
        ("ingest", "CLUSTER_MISMATCH (shard 0)", "serves", "store/0 CLUSTER_MISMATCH"),
        ("ingest", "NATS_UNREACHABLE STORE_UNREACHABLE (shard 1)", "not ready", ""),
        ("delivery", "STORE_UNREACHABLE (shard 0) STORE_UNREACHABLE (shard 1)", "not ready", ""),
        ("delivery", "DRAINING", "not ready", ""),
        ("store", "SYNC_FAILED", "read-only", ""),
        ("store", "DISK_FLOOR", "read-only", ""),
        ("store", "NOT_READY", "not ready", ""),
    ],
)
def test_role_names_are_printed_as_services(role: RoleName, reason: str, state: str, away: str) -> None:
    status = RoleStatus(role, "a:1", reachable=True, ready=False, reason=reason)
    assert (role_state(status, 2), stores_away(status, 2)) == (state, away)
    (trouble,) = troubles(
        ClusterState((status, *(replace(STORE, address=f"s:{shard}", figures=()) for shard in range(2))))
    )
    assert f"{role} at a:1" in trouble or f"{role}/0 at a:1" in trouble
    gone = RoleStatus(role, "a:1", reachable=False, ready=False, reason="NOT_READY: closed")
    assert role_state(gone, 2) == "away"


async def test_json_output_has_the_same_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_facts, "SOURCES_S", 0.2)  # nobody here answers for sources
    async with command_on_a_door(ScriptedShard({"status": FIGURES}), monkeypatch) as command:
        code, said = await command.run("status")
        _, text = await command.text("status")
    assert code == 1
    assert [one.get("role") for one in said] == ["store", "ingest", "delivery", None]
    assert (said[0]["maintenance_stage"], said[0]["segment_bytes"], said[0]["wal_shards"]) == ("MERGE", 64 << 20, 2)
    assert (said[0]["state"], said[1]["state"], said[0]["fold_count"]) == ("ready", "away", 1)
    verdict = said[-1]
    assert verdict["well"] is False
    told = " ".join(text.split())
    for trouble in verdict["troubles"]:  # type: ignore[attr-defined]
        assert trouble in told
    assert "write-ahead log 2KiB, 8 segments 64MiB" in told
    assert "merge, checkpoint 7" in told
    assert "13 pieces of files found CORRUPT" in told
    assert "idempotency" not in told


async def test_source_that_somebody_paused_is_a_row_and_a_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_nats(tmp_path / "nats") as server:
        async with store_server(tmp_path / "store") as store, served_ingest(server.url, store, "b") as served:
            await (await served.make_bucket()).put("k", b"v")
            await served.copies()
            command = command_at(store, monkeypatch, ingest=served.address)
            _, live = await command.run("status")
            await served.client.sources.pause("b")
            await served.is_status("PAUSED")
            code, paused = await command.run("status")
            _, text = await command.text("status")
    (of_live,) = [one for one in live if "source" in one]
    assert (of_live["source"], of_live["state"], of_live["lag"]) == ("b", "LIVE", 0)
    assert not [one for one in live[-1]["troubles"] if "source" in one]  # type: ignore[attr-defined]
    assert (code, paused[-1]["well"]) == (1, False)
    assert "source b is PAUSED" in " ".join(paused[-1]["troubles"])  # type: ignore[arg-type]
    (row,) = [line for line in text.splitlines() if line.startswith("b ")]
    assert row.split()[1:9] == ["bucket", "b", "to", "b", "PAUSED", "1", "of", "1"]


async def test_recovery_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_door(None, monkeypatch) as command:
        code, said = await command.run("status")
        _, text = await command.text("status")
    assert (code, said[0]["ready"], said[0]["reason"], said[0]["state"]) == (1, False, "NOT_READY", "recovering")
    assert (said[0]["replayed_bytes"], said[0]["total_bytes"]) == (0, 0)
    assert said[-1]["sources_known"] is False
    assert "recovery  …, 0B of … replayed" in text
