"""The limit of open files: raised at the start, and shared with callers."""

from __future__ import annotations

import asyncio
import resource
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from eddyline.core.server.open_files import CONNECTIONS_MIN, FILES_MAX, connections_within, raise_open_files
from eddyline.core.server.server import make_server
from eddyline.core.server.wire import CALLS_MAX
from tests.support.hang import HANG_S

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    found = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield found
    resource.setrlimit(resource.RLIMIT_NOFILE, found)


def test_the_soft_limit_is_raised_as_far_as_it_may(limits: tuple[int, int]) -> None:
    hard = limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    most = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    assert raise_open_files() == most
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, hard)
    assert raise_open_files(256) == most, "it is never lowered"


def test_connections_leave_files_for_the_role_and_a_low_limit_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert connections_within(65_536, 1_000) == CALLS_MAX
    assert not caplog.records
    assert connections_within(4_096, 1_096) == 3_000
    assert connections_within(256, 1_096) == CONNECTIONS_MIN
    assert ["ulimit -n" in record.message for record in caplog.records] == [True, True]


async def test_a_connection_more_than_the_bound_is_closed_and_one_that_leaves_makes_room() -> None:
    server = make_server("127.0.0.1:0", connections_max=2)
    host, _, port = (await server.start()).rpartition(":")
    try:
        held = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        for reader, _ in held:
            assert await reader.read(1)
        assert await _is_closed(host, port)
        await _close(held.pop())
        async with asyncio.timeout(HANG_S):
            while await _is_closed(host, port):
                pass
        await _close(held.pop())
    finally:
        await server.stop(0)


async def _is_closed(host: str, port: str) -> bool:
    """Whether the server takes no more connections than it has."""
    streams = await asyncio.open_connection(host, int(port))
    try:
        return await streams[0].read(1) == b""
    finally:
        await _close(streams)


async def _close(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    streams[1].close()
    with suppress(ConnectionError):
        await streams[1].wait_closed()
