"""The store's figures for people and programs, and how far its recovery is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.cli.status import state_text
from eddyline.client.status import RoleStatus
from eddyline.store.figures import Stage, StoreFigures
from tests.support.command_line import command_on_a_door
from tests.support.scripted_door import ScriptedDoor

if TYPE_CHECKING:
    from eddyline.client.status import RoleName

FIGURES = StoreFigures(1, 0, 2048, 3, 0, 5, 0, "", Stage.MERGE, 7, 8, 64 << 20, 10, 11, 12, 13, 2)


async def test_figures_are_in_units_and_troubles_shown_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_door(ScriptedDoor({"status": FIGURES}), monkeypatch) as command:
        _, said = await command.run("status")
        _, text = await command.text("status")
    assert (said[0]["maintenance_stage"], said[0]["segment_bytes"], said[0]["wal_shards"]) == ("MERGE", 64 << 20, 2)
    row = text.splitlines()[1]
    assert "wal=2KiB  segments=8 (64MiB)" in row
    assert "upkeep=merge" in row
    assert "corrupt_count=13" in row
    assert "dropped_key_count" not in row


@pytest.mark.parametrize(
    ("role", "reason", "expected"),
    [
        ("delivery", "STORE_UNREACHABLE (shard 1)", "serves; store/1 away"),
        ("ingest", "CLUSTER_MISMATCH (shard 0)", "serves; store/0 CLUSTER_MISMATCH"),
        (
            "ingest",
            "NATS_UNREACHABLE STORE_UNREACHABLE (shard 1)",
            "not ready: NATS_UNREACHABLE STORE_UNREACHABLE (shard 1)",
        ),
        (
            "delivery",
            "STORE_UNREACHABLE (shard 0) STORE_UNREACHABLE (shard 1)",
            "not ready: STORE_UNREACHABLE (shard 0) STORE_UNREACHABLE (shard 1)",
        ),
        ("delivery", "DRAINING", "not ready: DRAINING"),
        ("delivery", "", "not ready"),
    ],
)
def test_role_that_serves_what_lives_on_other_stores_is_told_to_serve(
    role: RoleName, reason: str, expected: str
) -> None:
    assert state_text(RoleStatus(role, "a:1", reachable=True, ready=False, reason=reason), 2) == expected
    away = RoleStatus(role, "a:1", reachable=False, ready=False, reason="NOT_READY: closed")
    assert state_text(away, 2) == "away: NOT_READY"


async def test_recovery_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_door(None, monkeypatch) as command:
        code, said = await command.run("status")
        _, text = await command.text("status")
    assert (code, said[0]["ready"], said[0]["reason"]) == (1, False, "NOT_READY")
    assert (said[0]["replayed_bytes"], said[0]["total_bytes"]) == (0, 0)
    assert "not ready: NOT_READY" in text
    assert "recovering  …  0B of … replayed" in text
