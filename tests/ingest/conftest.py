"""One nats-server for all of ingest's tests; each test has its own bucket."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from zlib import crc32

import pytest
import pytest_asyncio
from xxhash import xxh32_hexdigest

from tests.support.ingest.kit import BucketKit, SourceKit, bucket_kit, source_kit
from tests.support.nats.server import NatsServer, running_nats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

NAME_CHARS_MAX: Final = 60


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with running_nats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest_asyncio.fixture
async def kit(
    nats_server: NatsServer, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[BucketKit]:
    name = re.sub(r"[^A-Za-z0-9_]", "_", request.node.name)
    if len(name) > NAME_CHARS_MAX:  # cut, two tests might share a bucket
        name = f"{name[:NAME_CHARS_MAX]}_{crc32(name.encode()):08x}"
    async with bucket_kit(nats_server.url, tmp_path_factory.mktemp("kit"), name) as made:
        yield made


@pytest_asyncio.fixture
async def sources(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[SourceKit]:
    async with source_kit(nats_server.url, tmp_path) as made:
        yield made


@pytest.fixture
def bucket_name(request: pytest.FixtureRequest) -> str:
    """Return a name that no other test uses."""
    return re.sub(r"[^A-Za-z0-9_]", "_", request.node.name)[:60] + xxh32_hexdigest(request.node.nodeid.encode())
