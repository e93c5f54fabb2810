"""The log of a role has a line for each change of its readiness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.server.health import STORE_LEG, HealthBoard

if TYPE_CHECKING:
    import pytest


async def test_ready_is_logged_once_a_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "eddyline.core.server.health")
    board = HealthBoard()
    await board.start()
    for ready in (False, True, True):
        await board.set_ready(ready)
    await board.set_leg(STORE_LEG, False)
    await board.set_ready(False)
    await board.set_ready(True)
    assert [record.getMessage() for record in caplog.records] == ["ready", "not ready", "ready"]
    assert [getattr(record, "fields") for record in caplog.records] == [{}, {"away": "store"}, {"away": "store"}]  # noqa: B009 - of `extra`
