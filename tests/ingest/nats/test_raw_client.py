"""Private parts of nats-py that ingest relies on: the overridden methods are still those that are called."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from eddyline.ingest.nats.raw_client import RawClient

if TYPE_CHECKING:
    from tests.support.ingest.kit import BucketKit


async def test_raw_subscription_gets_bytes_and_the_others_get_messages(kit: BucketKit) -> None:
    client = RawClient()
    await client.connect(kit.url)
    got: list[tuple[bytes, bytes, bytes, bytes]] = []
    try:
        subscription = await client.subscribe_raw("raw.*", lambda *message: got.append(message))
        plain = await client.subscribe("raw.*")
        await client.publish("raw.a", b"1", reply="back")
        await client.publish("raw.b", b"2", headers={"A": "x"})
        await client.flush()
        assert [(await plain.next_msg(timeout=5)).subject for _ in range(2)] == ["raw.a", "raw.b"]
        assert got[0] == (b"raw.a", b"back", b"1", b"")
        assert got[1][:3] == (b"raw.b", b"", b"2")
        assert got[1][3].startswith(b"NATS/1.0\r\nA: x")
        await subscription.end()
        await client.publish("raw.c", b"3")
        await client.flush()
        assert (await plain.next_msg(timeout=5)).data == b"3"
        assert len(got) == 2
        await subscription.end()
    finally:
        await client.close()
    assert client.receivers == {}


async def test_requests_of_the_same_client_are_answered(kit: BucketKit) -> None:
    client = RawClient()
    await client.connect(kit.url)
    try:
        answer = await asyncio.wait_for(client.request("$JS.API.INFO", b"", timeout=5), 6)
    finally:
        await client.close()
    assert b"account_info_response" in answer.data


async def test_tries_at_a_server_that_hangs_leave_no_connection_open() -> None:
    tries = 0
    enough = asyncio.Event()
    open_now: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        open_now.add(writer)
        if tries == 1:
            writer.write(b'INFO {"server_id":"x","max_payload":1048576,"headers":true}\r\n')
            await reader.readuntil(b"PING\r\n")
            writer.write(b"PONG\r\n")
        elif tries == 20:
            enough.set()
        if tries > 1:
            await reader.read()
        open_now.discard(writer)
        writer.close()

    async def ignore(_error: Exception) -> None:
        """Each try fails."""

    client = RawClient()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        await client.connect(
            [url],
            error_cb=ignore,
            max_reconnect_attempts=-1,
            connect_timeout=0.05,  # type: ignore[arg-type]
            reconnect_time_wait=0,
        )
        await asyncio.wait_for(enough.wait(), 10)
        assert len(open_now) <= 2
        await client.close()
