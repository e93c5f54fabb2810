"""The example clients in Node, Go and Java, from the proto files alone, against real roles that are killed under them."""

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

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.parametrize("language", ["node", "go", "java"]),
]


async def test_client_appends_gets_and_explains_errors(language: str, tmp_path: Path) -> None:
    await check_calls_and_errors(language, tmp_path)


async def test_client_watches_across_kills_of_delivery_and_store(language: str, tmp_path: Path) -> None:
    await check_kills(language, tmp_path)


async def test_client_follows_frames_of_later_versions(language: str) -> None:
    await check_script(language)


async def test_client_sends_its_key_over_tls(language: str, tmp_path: Path) -> None:
    await check_access(language, tmp_path)


async def test_client_gives_up_if_only_heartbeats_come(language: str) -> None:
    await check_signs_of_life(language)


async def test_client_marks_the_end_of_an_append(language: str) -> None:
    await check_batch_end(language)
