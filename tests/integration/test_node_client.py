"""A client in another language, from the proto files alone, against real roles; delivery is killed under it."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.support.processes import delivery_at, free_address, store_server

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
NODE = Path(__file__).parent / "node"
COUNT = 200
INSTALL_SECONDS_MAX = 120


async def _installed(directory: Path) -> Path:
    """The client with its two packages, in a folder of the test's own."""
    for name in ("package.json", "client.js"):
        shutil.copy(NODE / name, directory / name)
    npm = await asyncio.create_subprocess_exec(
        "npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent", cwd=directory
    )
    async with asyncio.timeout(INSTALL_SECONDS_MAX):
        assert await npm.wait() == 0
    return directory / "client.js"


async def test_node_appends_reads_and_watches_across_a_killed_delivery(tmp_path: Path) -> None:
    client = await _installed(tmp_path)
    address = free_address()
    async with store_server(tmp_path / "store") as store:
        async with delivery_at(address, store) as first:
            node = await asyncio.create_subprocess_exec(
                "node",
                client,
                str(ROOT / "proto"),
                store,
                address,
                "orders",
                str(COUNT),
                stdout=asyncio.subprocess.PIPE,
            )
            assert node.stdout is not None
            steps = []
            async for line in node.stdout:
                steps.append(json.loads(line))
                if steps[-1]["step"] == "read":
                    first.kill()
                    break
        async with delivery_at(address, store):
            steps += [json.loads(line) async for line in node.stdout]
            assert await node.wait() == 0, steps
    assert [step["step"] for step in steps if step["step"] != "stream ended"] == ["appended", "read", "watched", "done"]
    assert steps[-2]["count"] == COUNT
