"""An image's health check: queries the role at its address, and returns an exit code."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from eddyline.core import ask_probe
from eddyline.core.server.health import HealthBoard
from eddyline.core.telemetry.probes import Probes
from tests.core.telemetry.test_probes import KEY, endpoint

if TYPE_CHECKING:
    from pathlib import Path

SETTING = "EDDYLINE_STORE_METRICS_LISTEN"


async def code_of(probe: str, listen: str) -> int:
    """Run the health check on a thread, as it is a process of its own, and return its result."""
    return await asyncio.to_thread(partial(ask_probe.main, [probe], {SETTING: listen, "PATH": "/"}))


async def test_exit_code_follows_the_answer_of_the_role(capsys: pytest.CaptureFixture[str]) -> None:
    board = HealthBoard()
    async with endpoint(Probes(board)) as address:
        assert await code_of("live", address) == 0
        assert await code_of("ready", address) == 1
        await board.set_ready(True)
        assert await code_of("ready", address) == 0
    assert capsys.readouterr().out == "live\nnot ready\nready\n"


async def test_role_that_listens_on_all_addresses_is_queried_on_loopback(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY, encoding="utf-8")
    async with endpoint(Probes(HealthBoard()), key_file=str(key), listen="0.0.0.0:0") as address:
        assert await code_of("live", address) == 0


async def test_role_that_is_gone_fails_the_check() -> None:
    async with endpoint() as address:
        pass
    assert await code_of("live", address) == 1


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [
        (["live"], {}),
        (["live"], {SETTING: ""}),
        (["live"], {SETTING: "127.0.0.1:1", "EDDYLINE_INGEST_METRICS_LISTEN": "127.0.0.1:2"}),
        (["healthy"], {SETTING: "127.0.0.1:1"}),
        ([], {SETTING: "127.0.0.1:1"}),
    ],
)
def test_missing_setting_and_missing_role_have_different_exit_codes(
    arguments: list[str], environ: dict[str, str]
) -> None:
    assert ask_probe.main(arguments, environ) == 2
