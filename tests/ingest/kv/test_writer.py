"""Writes into a bucket: compare-and-set as NATS does it, tombstones of every kind, times to live, keys, bounds."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import (
    BucketForbids,
    BucketFull,
    BucketNotCopied,
    BucketNotFound,
    EddylineError,
    InvalidArgument,
    KeyExists,
    KeyInvalid,
    RevisionMismatch,
    SourceNotFound,
    Throttled,
    ValueTooLarge,
)
from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import TopicConfig
from eddyline.core.records.record import SOURCE_DATA_META_BYTES_MAX
from eddyline.ingest.kv import writer as kv
from eddyline.ingest.sources.creation import create_source
from tests.support.ingest.served import gone, target

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.ingest.kv.writer import KvWriter
    from tests.support.ingest.kit import BucketKit

TOMBSTONES = (
    {"KV-Operation": "DEL"},
    {"KV-Operation": "PURGE"},
    {"Nats-Marker-Reason": "MaxAge"},
    {"Nats-Marker-Reason": "Purge"},
    {"Nats-Marker-Reason": "Remove"},
)


@asynccontextmanager
async def writer(kit: BucketKit) -> AsyncIterator[KvWriter]:
    """A writer over an open connection."""
    async with kit.ingest() as role:
        await role.connection.wait_connected()
        yield role.writer


async def make_stream(kit: BucketKit, **changes: object) -> None:
    """Make the bucket as KV clients do, with changes of its stream's configuration."""
    config = {
        "name": f"KV_{kit.bucket}",
        "subjects": [f"$KV.{kit.bucket}.>"],
        "max_msgs_per_subject": 5,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        **changes,
    }
    answer = await kit.client.request(f"$JS.API.STREAM.CREATE.KV_{kit.bucket}", json.dumps(config).encode(), timeout=5)
    assert "error" not in json.loads(answer.data), answer.data


async def test_put_gives_the_revision_and_the_streams_identity(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    async with writer(kit) as kv_writer:
        first = await kv_writer.put(target(kit.bucket), b"1")
        second = await kv_writer.put(target(kit.bucket), b"")
    info = await kit.client.request(f"$JS.API.STREAM.INFO.KV_{kit.bucket}", b"", timeout=5)
    assert (first.revision, second.revision) == (1, 2)
    entry = await bucket.get("k")
    assert (entry.revision, entry.value or b"") == (2, b"")
    assert first.stream_identity == second.stream_identity
    created_s = int.from_bytes(first.stream_identity, "little", signed=True) // 10**9
    assert f"{created_s % 60:02d}" == json.loads(info.data)["created"][17:19]


@pytest.mark.parametrize("headers", TOMBSTONES, ids=lambda headers: "-".join(headers.values()))
async def test_create_succeeds_over_any_kind_of_tombstone(kit: BucketKit, headers: dict[str, str]) -> None:
    bucket = await kit.make_bucket()
    await bucket.put("k", b"old")
    marker = await kit.js.publish(f"$KV.{kit.bucket}.k", b"", headers=headers)
    async with writer(kit) as kv_writer:
        written = await kv_writer.create(target(kit.bucket), b"new")
    assert written.revision == marker.seq + 1
    assert (await bucket.get("k")).value == b"new"


async def test_create_of_a_live_key_is_refused_with_its_revision(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    await bucket.put("other", b"x")
    async with writer(kit) as kv_writer:
        await kv_writer.create(target(kit.bucket), b"")
        with pytest.raises(KeyExists) as refused:
            await kv_writer.create(target(kit.bucket), b"2")
    assert refused.value.revision == 2
    assert (await bucket.status()).values == 2


async def test_create_succeeds_over_a_key_whose_messages_were_purged_away(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    await bucket.put("k", b"old")
    await kit.js.purge_stream(f"KV_{kit.bucket}")
    async with writer(kit) as kv_writer:
        assert (await kv_writer.create(target(kit.bucket), b"new")).revision == 2


@pytest.mark.parametrize("markers", [True, False], ids=["with markers", "without markers"])
async def test_b04_create_over_an_expired_key(kit: BucketKit, *, markers: bool) -> None:
    # No longer than the key's own time: it would be raised to the markers'.
    changes = {"subject_delete_marker_ttl": 10**9} if markers else {}
    await make_stream(kit, allow_msg_ttl=True, **changes)
    async with writer(kit) as kv_writer:
        first = await kv_writer.create(target(kit.bucket), b"1", ttl_ms=1_000)
        with pytest.raises(KeyExists):
            await kv_writer.create(target(kit.bucket), b"2")
        await gone(kit, "k")
        # Where markers are on, the expiry itself took a revision.
        again = await kv_writer.create(target(kit.bucket), b"2", ttl_ms=60_000)
    assert again.revision == first.revision + (2 if markers else 1)


async def test_b10_update_without_a_time_to_live_makes_the_key_permanent(kit: BucketKit) -> None:
    await make_stream(kit, allow_msg_ttl=True)
    async with writer(kit) as kv_writer:
        created = await kv_writer.create(target(kit.bucket), b"1", ttl_ms=1_000)
        updated = await kv_writer.update(target(kit.bucket), b"2", expected_revision=created.revision)
        witness = await kv_writer.create(target(kit.bucket, b"witness"), b"1", ttl_ms=1_000)
        await gone(kit, "witness")
    message = await kit.js.get_last_msg(f"KV_{kit.bucket}", f"$KV.{kit.bucket}.k")
    assert (message.seq, message.data) == (updated.revision, b"2")
    assert "Nats-TTL" not in (message.headers or {})
    assert witness.revision == 3


async def test_b06_purge_is_a_delete_that_cuts_the_history(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with writer(kit) as kv_writer:
        for value in (b"1", b"2", b"3"):
            await kv_writer.put(target(kit.bucket), value)
        await kv_writer.delete(target(kit.bucket))
        assert (await bucket.status()).values == 4
        purged = await kv_writer.purge(target(kit.bucket, wait=True))
    assert (await bucket.status()).values == 1
    left = await kit.js.get_last_msg(f"KV_{kit.bucket}", f"$KV.{kit.bucket}.k")
    assert left.headers is not None
    assert (left.headers["KV-Operation"], left.seq) == ("PURGE", purged.revision)
    assert await kit.fold() == {}
    assert purged.applied == (kit.bucket,)


async def test_purge_takes_a_time_to_live_for_its_marker(kit: BucketKit) -> None:
    await make_stream(kit, allow_msg_ttl=True)
    async with writer(kit) as kv_writer:
        await kv_writer.put(target(kit.bucket), b"1")
        await kv_writer.purge(target(kit.bucket), ttl_ms=1_001)
        message = await kit.js.get_last_msg(f"KV_{kit.bucket}", f"$KV.{kit.bucket}.k")
    assert message.headers is not None
    assert message.headers["Nats-TTL"] == "2s"


async def test_update_delete_and_purge_check_the_expected_revision(kit: BucketKit) -> None:
    await kit.make_bucket()
    async with writer(kit) as kv_writer:
        await kv_writer.put(target(kit.bucket, b"other"), b"x")
        live = (await kv_writer.put(target(kit.bucket), b"1")).revision
        for call in (
            kv_writer.update(target(kit.bucket), b"2", expected_revision=1),
            kv_writer.delete(target(kit.bucket), expected_revision=1),
            kv_writer.purge(target(kit.bucket), expected_revision=1),
        ):
            with pytest.raises(RevisionMismatch) as refused:
                await call
            assert refused.value.revision == live
        deleted = await kv_writer.delete(target(kit.bucket), expected_revision=live)
        updated = await kv_writer.update(target(kit.bucket), b"2", expected_revision=deleted.revision)
        await kv_writer.purge(target(kit.bucket), expected_revision=updated.revision)
        with pytest.raises(RevisionMismatch) as absent:
            await kv_writer.update(target(kit.bucket, b"never"), b"2", expected_revision=9)
        assert absent.value.revision == 0


@pytest.mark.parametrize(("op", "refusal"), [("create", KeyExists), ("update", RevisionMismatch)])
async def test_of_many_writers_of_one_revision_exactly_one_wins(
    kit: BucketKit, op: str, refusal: type[EddylineError]
) -> None:
    bucket = await kit.make_bucket()
    revision = await bucket.put("k", b"old")
    if op == "create":
        await bucket.delete("k")
    won: list[bytes] = []

    async def write(kv_writer: KvWriter, value: bytes) -> None:
        try:
            if op == "create":
                await kv_writer.create(target(kit.bucket), value)
            else:
                await kv_writer.update(target(kit.bucket), value, expected_revision=revision)
        except refusal:
            return
        won.append(value)

    async with writer(kit) as one, writer(kit) as other, asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(write(one if number % 2 else other, b"%d" % number))
    assert len(won) == 1
    assert (await bucket.get("k")).value == won[0]


async def test_b14_b16_keys_that_nats_does_not_let_clients_write_are_refused(kit: BucketKit) -> None:
    await kit.make_bucket()
    odd = [
        b"",
        b"a b",
        b"a/b c%2F",
        b".a",
        b"a.",
        b"a..b",
        b"a:b",
        b"a~b",
        "é".encode(),
        b"\xff",
        b"a*",
        b">",
        b"a\r\nPUB x 0",
    ]
    async with writer(kit) as kv_writer:
        for key in [*odd, b"k" * 1_025]:
            with pytest.raises(KeyInvalid):
                await kv_writer.put(target(kit.bucket, key), b"1")
        for key in (b"a/b", b"a.b.c", b"-_=/", b"A9", b"k" * 1_024):
            await kv_writer.put(target(kit.bucket, key), b"1")
    assert (await (await kit.js.key_value(kit.bucket)).status()).values == 5


async def test_b14_keys_that_others_wrote_are_read_whatever_they_are(kit: BucketKit) -> None:
    await kit.make_bucket()
    for key in ("a:b", "a~b", "é"):
        await kit.js.publish(f"$KV.{kit.bucket}.{key}", b"1")
    await kit.make_source()
    async with writer(kit) as kv_writer:
        await kv_writer.put(target(kit.bucket, b"a/b", wait=True), b"2")
    assert await kit.fold() == {"a:b": b"1", "a~b": b"1", "é": b"1", "a/b": b"2"}


async def test_a_time_to_live_needs_a_bucket_that_allows_it_and_a_second(kit: BucketKit) -> None:
    await make_stream(kit)
    async with writer(kit) as kv_writer:
        for ttl_ms in (1, 999, kv.TTL_MS_MAX + 1):
            with pytest.raises(InvalidArgument) as refused:
                await kv_writer.create(target(kit.bucket), b"1", ttl_ms=ttl_ms)
            assert refused.value.metadata["field"] == "ttl_ms"
        with pytest.raises(BucketForbids) as forbidden:
            await kv_writer.create(target(kit.bucket), b"1", ttl_ms=1_000)
        assert forbidden.value.metadata["setting"] == "allow_msg_ttl"
        with pytest.raises(InvalidArgument):
            await kv_writer.update(target(kit.bucket), b"1", expected_revision=0)
    assert (await (await kit.js.key_value(kit.bucket)).status()).values == 0


async def test_the_longest_time_to_live_is_accepted(kit: BucketKit) -> None:
    await make_stream(kit, allow_msg_ttl=True)
    async with writer(kit) as kv_writer:
        await kv_writer.create(target(kit.bucket), b"1", ttl_ms=kv.TTL_MS_MAX)
    assert (await (await kit.js.key_value(kit.bucket)).get("k")).value == b"1"


async def test_what_a_buckets_settings_forbid_is_refused(kit: BucketKit) -> None:
    await make_stream(kit, allow_rollup_hdrs=False)
    mirror = {"name": f"KV_{kit.bucket}m", "mirror": {"name": f"KV_{kit.bucket}"}, "max_msgs_per_subject": 5}
    await kit.client.request(f"$JS.API.STREAM.CREATE.KV_{kit.bucket}m", json.dumps(mirror).encode(), timeout=5)
    async with writer(kit) as kv_writer:
        with pytest.raises(BucketForbids) as forbidden:
            await kv_writer.purge(target(kit.bucket))
        assert forbidden.value.metadata["setting"] == "allow_rollup_hdrs"
        with pytest.raises(BucketForbids) as forbidden:
            await kv_writer.put(target(kit.bucket + "m"), b"1")
        assert forbidden.value.metadata["setting"] == "mirror"


async def test_a_value_is_bound_by_the_bucket_the_server_and_the_record(kit: BucketKit) -> None:
    await make_stream(kit, max_msg_size=200)
    async with writer(kit) as kv_writer:
        with pytest.raises(ValueTooLarge) as refused:
            await kv_writer.put(target(kit.bucket), b"x" * 200)
        assert refused.value.metadata["setBy"] == "bucket"
        largest = int(refused.value.metadata["valueBytesMax"])
        await kv_writer.put(target(kit.bucket), b"x" * largest)
        with pytest.raises(ValueTooLarge):
            await kv_writer.put(target(kit.bucket), b"x" * (largest + 1))
        with pytest.raises(ValueTooLarge) as refused:
            await kv_writer.put(target(kit.bucket), bytes(SOURCE_DATA_META_BYTES_MAX + 1))
        assert refused.value.metadata["setBy"] == "record"


TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_traced_write_has_its_caller_s_context_and_the_compare_headers(kit: BucketKit) -> None:
    await kit.make_bucket()
    async with writer(kit) as kv_writer:
        traced = replace(target(kit.bucket), traceparent=TRACEPARENT)
        written = await kv_writer.create(traced, b"1")
        message = await kit.js.get_last_msg(f"KV_{kit.bucket}", f"$KV.{kit.bucket}.k")
        assert message.headers is not None
        assert message.headers["traceparent"] == TRACEPARENT
        assert message.headers["Nats-Expected-Last-Subject-Sequence"] == "0"
        with pytest.raises(RevisionMismatch):
            await kv_writer.update(traced, b"2", expected_revision=written.revision + 1)
        await kv_writer.purge(traced, expected_revision=written.revision)
        message = await kit.js.get_last_msg(f"KV_{kit.bucket}", f"$KV.{kit.bucket}.k")
        assert message.headers is not None
        assert message.headers["traceparent"] == TRACEPARENT
        assert message.headers["KV-Operation"] == "PURGE"


async def test_a_traced_write_that_has_no_room_for_its_context_goes_without(kit: BucketKit) -> None:
    await make_stream(kit, max_msg_size=300)
    async with writer(kit) as kv_writer:
        with pytest.raises(ValueTooLarge) as refused:
            await kv_writer.put(target(kit.bucket), bytes(300))
        largest = int(refused.value.metadata["valueBytesMax"])
        traced = replace(target(kit.bucket), traceparent=TRACEPARENT)
        for size, is_traced in ((largest, False), (largest - 69, False), (largest - 70, True)):
            await kv_writer.put(traced, bytes(size))
            message = await kit.js.get_last_msg(f"KV_{kit.bucket}", f"$KV.{kit.bucket}.k")
            assert ("traceparent" in (message.headers or {})) is is_traced
        with pytest.raises(ValueTooLarge) as refused:
            await kv_writer.put(traced, bytes(largest + 1))
        assert int(refused.value.metadata["valueBytesMax"]) == largest


async def test_what_the_server_does_not_take_is_never_sent(kit: BucketKit) -> None:
    await kit.make_bucket()
    async with kit.ingest() as role:
        await role.connection.wait_connected()
        with pytest.raises(ValueTooLarge) as refused:
            await role.writer.put(target(kit.bucket), bytes(1 << 20))
        assert refused.value.metadata["setBy"] == "server"
        await role.writer.put(target(kit.bucket), bytes(int(refused.value.metadata["valueBytesMax"])))
        assert not role.connection.lost.is_set()


async def test_a_write_into_a_full_bucket_is_refused_as_full(kit: BucketKit) -> None:
    await make_stream(kit, max_bytes=1_000)
    async with writer(kit) as kv_writer:
        with pytest.raises(BucketFull):
            for number in range(10):
                await kv_writer.put(target(kit.bucket, b"%d" % number), b"x" * 300)


async def test_no_such_bucket(kit: BucketKit) -> None:
    async with writer(kit) as kv_writer:
        with pytest.raises(BucketNotFound):
            await kv_writer.put(target(kit.bucket), b"1")
        with pytest.raises(InvalidArgument):
            await kv_writer.put(target("a.b"), b"1")


async def test_key_that_no_source_takes_is_not_waited_for_nor_written(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    definition = SourceDefinition(kit.bucket, kit.bucket, kit.bucket, key_prefixes=(b"mine.",))
    await create_source(kit.store, definition, TopicConfig())
    await create_source(
        kit.store, replace(definition, name="rest", topic="rest", key_prefixes=(b"a.", b"b.")), TopicConfig()
    )
    async with writer(kit) as kv_writer:
        for source in ("", kit.bucket):
            with pytest.raises(BucketNotCopied) as raised:
                await kv_writer.put(target(kit.bucket, b"theirs.k", wait=True, source=source), b"1")
            assert f"{kit.bucket} copies mine.*" in raised.value.message
            assert ("rest copies a.*, b.*" in raised.value.message) == (source == "")
            assert "nothing was written" in raised.value.message
        with pytest.raises(BucketNotCopied):
            await kv_writer.put(target(kit.bucket, b"a.k", wait=True, source=kit.bucket), b"1")
        assert (await bucket.status()).values == 0
        async with kit.ingest():
            written = await kv_writer.put(target(kit.bucket, b"mine.k", wait=True), b"1")
            assert written.applied == (kit.bucket,)
            written = await kv_writer.put(target(kit.bucket, b"b.k", wait=True), b"1")
            assert written.applied == ("rest",)


async def test_waiting_without_a_source_of_the_key_is_refused_before_the_write(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    await kit.js.create_key_value(bucket=kit.bucket + "2")
    async with writer(kit) as kv_writer:
        with pytest.raises(BucketNotCopied):
            await kv_writer.put(target(kit.bucket + "2", wait=True), b"1")
        with pytest.raises(BucketNotCopied):
            await kv_writer.put(target(kit.bucket + "2", wait=True, source=kit.bucket), b"1")
        with pytest.raises(SourceNotFound):
            await kv_writer.put(target(kit.bucket, wait=True, source="other"), b"1")
        with pytest.raises(InvalidArgument):
            await kv_writer.put(target(kit.bucket, source=kit.bucket), b"1")
    assert (await bucket.status()).values == 0


async def test_writes_at_once_are_bounded(kit: BucketKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "WRITES_MAX", 2)
    await kit.make_bucket()
    refused = 0

    async def put(kv_writer: KvWriter) -> None:
        nonlocal refused
        try:
            await kv_writer.put(target(kit.bucket), b"1")
        except Throttled:
            refused += 1

    async with writer(kit) as kv_writer:
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(put(kv_writer))
        await kv_writer.put(target(kit.bucket), b"1")
    assert refused == 3
