"""A drill's folder: removed after a stop, kept and named after a failure or on request."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.integration

PATIENCE_S = 200


@asynccontextmanager
async def drill(folder: Path, *words: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A drill whose temporary folders are in this one."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "eddyline.cli", "drill", "--short", "--only", "ingest", *words),
        env={**os.environ, "TMPDIR": str(folder), **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def begun(folder: Path) -> None:
    """Wait until a store of it has a log: its cluster is coming up, in other processes."""
    while not list(folder.glob("eddyline-drill-*/logs/store.log")):  # noqa: ASYNC110, ASYNC240 - see above
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("words", [(), ("--keep",)])
async def test_stopped_drill_leaves_its_folder_only_on_request(tmp_path: Path, words: tuple[str, ...]) -> None:
    async with drill(tmp_path, *words) as process:
        await begun(tmp_path)
        process.terminate()
        said, _ = await process.communicate()
    left = os.listdir(tmp_path)
    assert (process.returncode, len(left)) == (143, len(words))
    assert all(f"the folder is kept: {tmp_path / name}" in said.decode() for name in left)


async def test_drill_that_cannot_go_on_leaves_its_folder_and_states_where(tmp_path: Path) -> None:
    async with drill(tmp_path, EDDYLINE_STORE_WAL_SHARDS="none") as process:
        said, _ = await process.communicate()
    (left,) = os.listdir(tmp_path)
    assert process.returncode == 1
    assert f"the folder is kept: {tmp_path / left}" in said.decode()
    assert "fails at each start" in said.decode()
