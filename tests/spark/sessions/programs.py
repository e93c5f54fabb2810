"""Spark sessions of another kind than the suite's, each a process of its own that prints what it found as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
SECONDS_MAX = 280


async def found_by(module: str, *arguments: str) -> dict[str, Any]:
    """Run `module`; the JSON object that it printed last."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Connect takes a free port then, not the one that another test may have.
        "SPARK_TESTING": "1",
    }
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(SECONDS_MAX):
            printed, _ = await running.communicate()
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
    assert running.returncode == 0
    found: dict[str, Any] = json.loads(printed.decode().strip().splitlines()[-1])
    return found
