"""Buckets at a real nats-server: loads, single writes, what is listed; and a server that is away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.cli.nats.bucket import HISTORY, nats_connection, open_bucket
from eddyline.core.errors import BucketNotFound, NatsUnreachable
from tests.support.nats.server import NatsServer, running_nats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with running_nats(tmp_path) as nats:
        yield nats


async def test_load_puts_all_and_lists_what_is_live(server: NatsServer) -> None:
    async with nats_connection(server.url) as connection:
        bucket = await open_bucket(connection, "b")
        values = {f"key.{number}": b"%d" % number for number in range(3_000)}
        values["empty"] = b""
        assert await bucket.live_values() == {}
        assert await bucket.put_all(values) == 3_001
        assert await bucket.delete("key.7") == 3_002
        del values["key.7"]
        assert await bucket.live_values() == values
        assert (await bucket.first_revision(), await bucket.last_revision()) == (1, 3_002)


async def test_history_is_as_long_as_nats_allows(server: NatsServer) -> None:
    async with nats_connection(server.url) as connection:
        bucket = await open_bucket(connection, "b")
        for number in range(HISTORY + 2):
            revision = await bucket.put("k", b"%d" % number)
        assert revision == HISTORY + 2
        assert [await bucket.has_revision(number) for number in (1, 2, 3, revision)] == [False, False, True, True]


async def test_missing_bucket_is_created_only_on_request(server: NatsServer) -> None:
    async with nats_connection(server.url) as connection:
        with pytest.raises(BucketNotFound):
            await open_bucket(connection, "b", create=False)
        await (await open_bucket(connection, "b")).put("k", b"v")
        again = await open_bucket(connection, "b", create=False)
        assert await again.consumer_names() == []
        assert await again.live_values() == {"k": b"v"}


async def test_server_that_died_is_an_error_and_its_return_is_noticed(server: NatsServer) -> None:
    async with nats_connection(server.url) as connection:
        bucket = await open_bucket(connection, "b")
        await bucket.put("k", b"1")
        server.kill()
        with pytest.raises(NatsUnreachable):
            await bucket.last_revision()
        server.start()
        assert await bucket.put("k", b"2") >= 2


async def test_address_without_a_server_is_an_error() -> None:
    with pytest.raises(NatsUnreachable):
        async with nats_connection("nats://127.0.0.1:1"):
            pass
