"""The cluster of services/ingest/README.md with a running NATS: its lines unchanged, on free ports."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster.processes import free_address, serving
from tests.support.nats.server import NatsServer

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.integration

README = Path(__file__).parents[3] / "services" / "ingest" / "README.md"
BIN = Path(sys.executable).parent
STEP_SECONDS_MAX = 200


def lines() -> list[str]:
    """The section's first block."""
    section = README.read_text(encoding="utf-8").split("## Run it\n")[1]
    _, _, block = section.partition("\n    ")
    return [line.strip() for line in block.split("\n\n")[0].splitlines()]


async def shell(script: Sequence[str], environment: dict[str, str], folder: Path) -> asyncio.subprocess.Process:
    """Run lines in a shell; its background jobs end with it."""
    text = "\n".join(("set -e", "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT", "trap exit TERM", *script))
    return await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        text.replace(".venv/bin", str(BIN)),
        cwd=folder,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def test_the_roles_by_themselves_copy_from_a_nats_that_is_there(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    server.start()
    names = ("STORE", "INGEST", "DELIVERY")
    addresses = {name: free_address() for name in names}
    environment = {f"EDDYLINE_{name}_LISTEN": address for name, address in addresses.items()}
    environment |= {f"EDDYLINE_COMMON_{name}_ADDRESSES": address for name, address in addresses.items()}
    script = [line.replace("nats://127.0.0.1:4222", server.url) for line in lines()]
    script = [line.replace("127.0.0.1:7701", addresses["STORE"]) for line in script]
    exports = [line for line in script if line.startswith("export ")]
    roles = [line for line in script if line.endswith("&")]
    commands = [line for line in script if line not in exports and line not in roles]
    assert (len(exports), len(roles), len(commands)) == (3, 3, 2)
    try:
        cluster = await shell([*exports, *roles, "wait"], environment, tmp_path)
        try:
            async with asyncio.timeout(STEP_SECONDS_MAX):
                for address in addresses.values():
                    await serving(address)
                work = await shell([*exports, *commands], environment, tmp_path)
                out, _ = await work.communicate()
            assert work.returncode == 0, out.decode()
            assert "all is well" in out.decode()
            assert "NATS has no bucket certs yet" in out.decode()
        finally:
            cluster.terminate()
            await cluster.communicate()
    finally:
        server.stop()
    assert (tmp_path / "eddyline-data" / "store").is_dir()
