"""The store's figures for people and programs, and how far its recovery is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.store.figures import Stage, StoreFigures
from tests.support.command_line import command_on_a_door
from tests.support.scripted_door import ScriptedDoor

if TYPE_CHECKING:
    import pytest

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


async def test_recovery_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async with command_on_a_door(None, monkeypatch) as command:
        code, said = await command.run("status")
        _, text = await command.text("status")
    assert (code, said[0]["ready"], said[0]["reason"]) == (1, False, "NOT_READY")
    assert (said[0]["replayed_bytes"], said[0]["total_bytes"]) == (0, 0)
    assert "not ready: NOT_READY" in text
    assert "recovering  …  0B of … replayed" in text
