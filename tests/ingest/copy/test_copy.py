"""From a bucket to a topic: values, operations, odd keys, places."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from eddyline.core.records.record import MetaEntry, Op
from eddyline.ingest.copy.batch import CHUNK_RECORDS_MAX

if TYPE_CHECKING:
    from tests.support.ingest.kit import BucketKit


async def test_values_there_before_and_put_after_the_start_arrive_in_order(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    await bucket.put("a", b"1")
    await bucket.put("b", b"2")
    await kit.make_source()
    async with kit.ingest():
        await kit.is_state("LIVE")
        last = await bucket.put("a", b"3")
        await kit.reaches(last)
    assert [(record.key, record.data) for record in await kit.records()] == [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
    assert await kit.fold() == {"a": b"3", "b": b"2"}


async def test_version_is_the_revision_and_time_the_servers(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    revision = await bucket.put("a", b"1")
    message = await kit.js.get_msg(f"KV_{kit.bucket}", revision)
    await kit.make_source()
    async with kit.ingest():
        await kit.reaches(revision)
    assert (await kit.records())[0].version == revision.to_bytes(8, "big")
    assert (await kit.records())[0].source_ts_ns > 1_700_000_000 * 10**9
    assert message.seq == revision


async def test_empty_bucket_is_live_at_once_and_takes_the_first_value(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest():
        await kit.is_state("LIVE")
        await kit.reaches(await bucket.put("a", b"1"))
    assert await kit.fold() == {"a": b"1"}


async def test_delete_purge_and_an_empty_value_are_distinguished(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    for key in ("deleted", "purged", "empty"):
        await bucket.put(key, b"x")
    await kit.make_source()
    async with kit.ingest():
        await bucket.delete("deleted")
        await bucket.purge("purged")
        last = await bucket.put("empty", b"")
        await kit.reaches(last)
    # A purge takes the key's history at the source with it, read or not.
    assert (await kit.ops())[-3:] == [(Op.DELETE, b"deleted"), (Op.PURGE, b"purged"), (Op.PUT, b"empty")]
    assert await kit.fold() == {"empty": b""}
    assert [record.data for record in (await kit.records())[-3:]] == [None, None, b""]
    assert all(record.meta == () for record in await kit.records())


async def test_expiry_with_a_marker_is_a_purge(kit: BucketKit) -> None:
    await kit.make_bucket()
    await kit.js.publish(f"$KV.{kit.bucket}.marked", b"", headers={"Nats-Marker-Reason": "MaxAge"})
    await kit.js.publish(f"$KV.{kit.bucket}.removed", b"", headers={"Nats-Marker-Reason": "Remove"})
    last = await kit.js.publish(f"$KV.{kit.bucket}.purged", b"", headers={"Nats-Marker-Reason": "Purge"})
    await kit.make_source()
    async with kit.ingest():
        await kit.reaches(last.seq)
    assert await kit.ops() == [(Op.PURGE, b"marked"), (Op.DELETE, b"removed"), (Op.PURGE, b"purged")]


async def test_headers_become_meta_without_nats_own(kit: BucketKit) -> None:
    await kit.make_bucket()
    headers = {"Trace": "t 1", "Nats-Msg-Id": "x", "lower": ""}
    last = await kit.js.publish(f"$KV.{kit.bucket}.a", b"1", headers=headers)
    await kit.make_source()
    async with kit.ingest():
        await kit.reaches(last.seq)
    assert (await kit.records())[0].meta == (MetaEntry("Trace", b"t 1"), MetaEntry("lower", b""))


async def test_repeated_headers_and_keys_that_are_not_utf8_come_through(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    header = b"NATS/1.0\r\nA: 1\r\nA: 2\r\na: 3\r\n\r\n"
    host, _, port = kit.url.removeprefix("nats://").rpartition(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.recv(4096)
        raw.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n')
        raw.sendall(
            b"HPUB $KV.%b.\xff\xfe %d %d\r\n%b1\r\n" % (kit.bucket.encode(), len(header), len(header) + 1, header)
        )
        raw.sendall(b"PING\r\n")
        assert b"PONG" in raw.recv(4096)
    await bucket.put("after", b"2")
    await kit.make_source()
    async with kit.ingest():
        await kit.reaches(2)
    assert (await kit.records())[0].key == b"\xff\xfe"
    assert (await kit.records())[0].meta == (MetaEntry("A", b"1"), MetaEntry("A", b"2"), MetaEntry("a", b"3"))
    async with kit.ingest():
        await kit.reaches(await bucket.put("again", b"3"))
        await kit.is_state("LIVE")
    assert b"\xff\xfe" in await kit.entries()


async def test_keys_that_clients_refuse_are_copied_unchanged(kit: BucketKit) -> None:
    await kit.make_bucket()
    keys = ["a:b", "a~b", "é", "a.b.c", "a/b+c&d", "<x>"]
    for key in keys:
        last = await kit.js.publish(f"$KV.{kit.bucket}.{key}", b"1")
    await kit.make_source()
    async with kit.ingest():
        await kit.reaches(last.seq)
        await kit.is_state("LIVE")
    # A second start compares key sets: none of them may look gone.
    await kit.js.publish(f"$KV.{kit.bucket}.last", b"1")
    async with kit.ingest():
        await kit.reaches(last.seq + 1)
        await kit.is_state("LIVE")
    assert set(await kit.fold()) == {*keys, "last"}


async def test_a_message_too_large_for_a_record_stops_the_source_behind_what_was_before(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    await bucket.put("before", b"1")
    await kit.js.publish(f"$KV.{kit.bucket}." + "k" * 1_100, b"1")
    await bucket.put("after", b"1")
    await kit.make_source()
    async with kit.ingest():
        await kit.is_state("OVERSIZE")
        assert "1100 bytes" in (await kit.source()).report.reason
    assert await kit.fold() == {"before": b"1"}
    assert await kit.revision() == 1


async def test_many_messages_are_gathered_into_few_batches_while_one_is_on_its_way(kit: BucketKit) -> None:
    await kit.make_copied_bucket()
    async with kit.ingest():
        await kit.is_state("LIVE")
        kit.link.applies_open.clear()
        await kit.js.publish(f"$KV.{kit.bucket}.k", b"first")
        await kit.until(lambda: kit.link.applying > 0)
        for number in range(2_500):
            await kit.client.publish(f"$KV.{kit.bucket}.k{number}", b"x" * 100)
        await kit.client.flush()
        await kit.js.stream_info(f"KV_{kit.bucket}")
        kit.link.applies_open.set()
        await kit.reaches(2_501)
    sizes = kit.link.batch_sizes
    assert sizes[0] == 1
    assert max(sizes) <= CHUNK_RECORDS_MAX
    assert len(sizes) < 50
    assert sum(sizes) == 2_501
    assert [int.from_bytes(record.version, "big") for record in await kit.records()] == list(range(1, 2_502))
