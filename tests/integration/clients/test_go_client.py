"""The example client in Go, from the proto files alone, against real roles that are killed under it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.clients.example_client_checks import (
    check_access,
    check_batch_end,
    check_calls_and_errors,
    check_kills,
    check_script,
    check_signs_of_life,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


async def test_go_appends_gets_and_explains_errors(tmp_path: Path) -> None:
    await check_calls_and_errors("go", tmp_path)


async def test_go_watches_across_kills_of_delivery_and_store(tmp_path: Path) -> None:
    await check_kills("go", tmp_path)


async def test_go_follows_frames_of_later_versions() -> None:
    await check_script("go")


async def test_go_shows_its_key_over_tls(tmp_path: Path) -> None:
    await check_access("go", tmp_path)


async def test_go_gives_up_where_only_heartbeats_come() -> None:
    await check_signs_of_life("go")


async def test_go_states_where_an_append_ends() -> None:
    await check_batch_end("go")
