"""h2spec, the conformance suite of HTTP/2, against a server that answers every request: all of its cases pass."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Final

import pytest

from tests.support.hang import HANG_S

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT: Final = Path(__file__).parents[3]
MODULE: Final = "github.com/summerwind/h2spec"
VERSION: Final = "v2.2.1+incompatible"
BUILT: Final = ROOT / "build" / "h2spec" / "h2spec"
CASES: Final = 146
"""145, and one more in its strict mode."""
BUILD_S: Final = 240.0


async def build_h2spec() -> Path:
    """Build h2spec from its Go module, once; skip the test where that cannot be had."""
    if BUILT.is_file():
        return BUILT
    if shutil.which("go") is None:
        pytest.skip("no go on this machine")
    environment = {**os.environ, "GOBIN": str(BUILT.parent), "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
    command = ("go", "install", "-buildvcs=false", f"{MODULE}/cmd/h2spec@{VERSION}")
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=PIPE, stderr=STDOUT)
    async with asyncio.timeout(BUILD_S):
        output, _ = await process.communicate()
    if process.returncode:
        pytest.skip(f"{MODULE} cannot be built here: {output.decode()[-300:]}")
    return BUILT


async def test_h2spec_passes_all_of_its_cases() -> None:
    h2spec = await build_h2spec()
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.wire.lenient", cwd=ROOT, stdin=PIPE, stdout=PIPE
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        async with asyncio.timeout(HANG_S):
            port = (await server.stdout.readline()).decode().strip()
        command = (str(h2spec), "-h", "127.0.0.1", "-p", port, "--timeout", "2", "--strict")
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
        async with asyncio.timeout(BUILD_S):
            output, _ = await process.communicate()
    finally:
        server.stdin.close()
        await server.wait()
    text = output.decode(errors="replace")
    summary = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", text)
    assert summary is not None, text[-2000:]
    assert summary.groups() == (str(CASES), str(CASES), "0", "0"), text[text.find("Failures:") :]
