"""What ingest needs of nats-py's inside: the one method that is overridden is still the one called for messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from eddyline.ingest.raw_client import RawClient

if TYPE_CHECKING:
    from tests.support.ingest_kit import Kit


async def test_raw_subscription_gets_bytes_and_the_others_get_messages(at: Kit) -> None:
    client = RawClient()
    await client.connect(at.url)
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


async def test_requests_of_the_same_client_are_answered(at: Kit) -> None:
    client = RawClient()
    await client.connect(at.url)
    try:
        answer = await asyncio.wait_for(client.request("$JS.API.INFO", b"", timeout=5), 6)
    finally:
        await client.close()
    assert b"account_info_response" in answer.data
