"""The wheels of `make wheels`, installed without the repository, with the newest and the oldest versions in their bounds."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tests.support.store.served import served_store

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT: Final = Path(__file__).parents[3]
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
UV: Final = Path(sys.executable).parent / "uv"
SECONDS_MAX: Final = 240.0
OF_SERVERS: Final = re.compile(
    r"eddyline-wire|grpcio-(reflection|channelz)|opentelemetry|prometheus|pyarrow|uvloop|rocksdict|nats"
)
PROGRAM: Final = """
import asyncio, importlib.metadata, json, pathlib, sys
from eddyline.client import Record, __version__, connect
from eddyline.v1 import types_pb2

async def main():
    async with connect(sys.argv[1]) as client:
        await client.put("orders", b"17", b"paid", create=True)
        await client.append("orders", [Record(key=b"18", data=b"open")])
        return [[record.key.decode(), record.data.decode()] async for record in client.range("orders")]

there = {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()}
protos = sorted(path.name for path in pathlib.Path(types_pb2.__file__).parent.glob("*.proto"))
print(json.dumps([asyncio.run(main()), __version__, there, protos]))
"""


async def run(*words: str | Path, folder: Path) -> str:
    """Run a program that must pass; what it said on standard output."""
    process = await asyncio.create_subprocess_exec(
        *words, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(SECONDS_MAX):
        out, err = await process.communicate()
    assert process.returncode == 0, f"{words}: {err.decode()}"
    return out.decode()


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels, made once."""
    folder = tmp_path_factory.mktemp("wheels") / "dist"
    subprocess.run(["make", "wheels", f"DIST={folder}"], cwd=ROOT, check=True, capture_output=True, timeout=SECONDS_MAX)
    return folder


@pytest.fixture
def folder(tmp_path: Path, dist: Path) -> Path:
    """A stranger's folder, with the wheels."""
    (tmp_path / "dist").symlink_to(dist)
    return tmp_path


async def used(folder: Path) -> dict[str, str]:
    """Use the client that is installed there on a store; the versions of all that is there."""
    async with served_store(folder / "data") as store:
        said = await run(folder / "env" / "bin" / "python", "-W", "error", "-c", PROGRAM, store.address, folder=folder)
    entries, version, there, protos = json.loads(said)
    assert entries == [["17", "paid"], ["18", "open"]]
    assert version == there["eddyline-client"]
    assert protos == sorted(path.name for path in (ROOT / "proto" / "eddyline" / "v1").glob("*.proto"))
    assert not [name for name in there if OF_SERVERS.search(name)]
    return dict(there)


async def test_the_line_of_the_readme_installs_a_client_that_works(folder: Path) -> None:
    (line,) = re.findall(r"`(pip install --find-links dist [^`]*)`", README)
    words = line.split()[1:]
    await run(sys.executable, "-m", "venv", "env", folder=folder)
    await run(folder / "env" / "bin" / "python", "-m", "pip", "--quiet", *words, folder=folder)
    await used(folder)


async def test_it_works_with_the_oldest_protobuf_and_grpcio_that_it_asks_for(folder: Path) -> None:
    asked = (ROOT / "libs" / "api" / "pyproject.toml").read_text(encoding="utf-8")
    oldest: dict[str, str] = dict(re.findall(r'"(grpcio|protobuf)>=([\d.]+),', asked))
    python = folder / "env" / "bin" / "python"
    await run(sys.executable, "-m", "venv", "--without-pip", "env", folder=folder)
    pins = [f"{name}=={version}" for name, version in oldest.items()]
    line = ("pip", "install", "--quiet", "--python", python, "--find-links", "dist", "eddyline-client")
    await run(UV, *line, *pins, folder=folder)
    there = await used(folder)
    assert {name: there[name] for name in oldest} == oldest


def test_each_wheel_has_its_readme_its_licence_and_nothing_of_others(dist: Path) -> None:
    wheels = sorted(dist.glob("*.whl"))
    files: dict[str, str] = {}
    assert len(wheels) > 6
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as packed:
            names = packed.namelist()
            (metadata,) = (packed.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
            assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")], wheel.name
        assert "License-File: LICENSE" in metadata and "Description-Content-Type: text/markdown" in metadata
        for name in names:
            assert name not in files, f"{name} is in {files.get(name)} and {wheel.name}"
            files[name] = wheel.name
