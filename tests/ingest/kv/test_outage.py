"""Writes during failures: NATS away, hanging or killed, a bucket deleted under a write, callers that leave."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import (
    ApplyPending,
    BucketForbids,
    BucketNotFound,
    KeyExists,
    NatsUnreachable,
    StoreUnreachable,
    WriteUnknown,
)
from tests.support.hang import HANG_S
from tests.support.ingest.kit import breakable_kit, bucket_kit
from tests.support.ingest.served import target
from tests.support.nats.server import running_nats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from eddyline.ingest.role import IngestRole
    from tests.support.ingest.kit import BucketKit
    from tests.support.nats.server import NatsServer


@asynccontextmanager
async def own_server(folder: Path) -> AsyncIterator[tuple[NatsServer, BucketKit, IngestRole]]:
    """Run a server that a test may break, with a bucket that is copied."""
    async with breakable_kit(folder) as (server, kit):
        await kit.make_copied_bucket()
        async with kit.ingest() as role:
            await kit.is_state("LIVE")
            try:
                yield server, kit, role
            finally:
                server.thaw()


@asynccontextmanager
async def unapplied(kit: BucketKit) -> AsyncIterator[IngestRole]:
    """Run ingest with a live source whose batches wait at the store until `kit.link.applies_open` is set."""
    await kit.make_copied_bucket()
    async with kit.ingest() as role:
        await kit.is_state("LIVE")
        kit.link.applies_open.clear()
        yield role


async def test_nats_away_is_a_definite_refusal(tmp_path: Path) -> None:
    async with own_server(tmp_path) as (server, kit, role):
        server.kill()
        await asyncio.wait_for(role.connection.lost.wait(), 5)
        with pytest.raises(NatsUnreachable):
            await role.writer.put(target("b"), b"1")
        kit.reconnected.clear()
        server.start()
        await asyncio.wait_for(role.connection.wait_connected(), 10)
        written = await role.writer.put(target("b"), b"2")
        assert written.revision == 1, "what was refused was not written"


async def test_a_server_that_hangs_before_the_write_is_a_definite_refusal(tmp_path: Path) -> None:
    async with own_server(tmp_path) as (server, _at, role):
        server.freeze()
        with pytest.raises(NatsUnreachable):
            await role.writer.put(target("b", s=0.3), b"1")
        server.thaw()
        await role.connection.wait_connected()
        assert (await role.writer.put(target("b"), b"2")).revision == 1


async def test_a_server_that_hangs_in_the_write_leaves_it_unknown_and_it_may_be_there(tmp_path: Path) -> None:
    async with own_server(tmp_path) as (server, kit, role):
        # The look at the bucket is answered; the write finds a server that hangs.
        bucket = await role.writer._jetstream.bucket("b")
        server.freeze()
        publisher = role.writer._publisher
        with pytest.raises(WriteUnknown):
            await publisher.publish(bucket, "$KV.b.k", b"1", {"Nats-Expected-Stream": "KV_b"}, timeout_s=0.3)
        server.thaw()
        await kit.reaches(1)
        assert await kit.fold() == {"k": b"1"}


async def test_a_server_killed_in_the_write_leaves_it_unknown_at_once(tmp_path: Path) -> None:
    async with own_server(tmp_path) as (server, _at, role):
        bucket = await role.writer._jetstream.bucket("b")
        server.freeze()
        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as group:
            writing = group.create_task(unknown(role, bucket))
            await asyncio.sleep(0)
            server.kill()
        assert writing.result()


async def unknown(role: IngestRole, bucket: object) -> bool:
    """True = the write failed with an unknown outcome."""
    try:
        await role.writer._publisher.publish(bucket, "$KV.b.k", b"1", {}, timeout_s=60)  # type: ignore[arg-type]
    except WriteUnknown:
        return True
    return False


async def test_a_bucket_deleted_under_a_write_is_an_error(kit: BucketKit) -> None:
    await kit.make_bucket()
    async with kit.ingest() as role:
        await role.connection.wait_connected()
        bucket = await role.writer._jetstream.bucket(kit.bucket)
        await kit.js.delete_key_value(kit.bucket)
        with pytest.raises(BucketNotFound):
            await role.writer._publisher.publish(bucket, f"$KV.{kit.bucket}.k", b"1", {}, timeout_s=5)


async def test_a_bucket_recreated_under_a_write_has_its_own_identity(kit: BucketKit) -> None:
    bucket = await kit.make_bucket()
    for _ in range(3):
        await bucket.put("x", b"")
    async with kit.ingest() as role:
        await role.connection.wait_connected()
        seen = await role.writer._jetstream.bucket(kit.bucket)
        await kit.js.delete_key_value(kit.bucket)
        await kit.make_bucket()
        written = await role.writer.put(target(kit.bucket), b"1")
        assert written.revision == 1
        assert await role.writer._created_ns(seen, 1) != seen.stream.created_ns
        assert (await role.writer._created_ns(seen, 1)).to_bytes(8, "little") == written.stream_identity


async def test_a_write_that_is_not_applied_in_time_fails_with_its_revision(kit: BucketKit) -> None:
    async with unapplied(kit) as role:
        with pytest.raises(ApplyPending) as pending:
            await role.writer.put(target(kit.bucket, wait=True, s=0.3), b"1")
        assert pending.value.revision == 1
        assert pending.value.metadata["source"] == kit.bucket
        kit.link.applies_open.set()
        await kit.reaches(1)
    bucket = await kit.js.key_value(kit.bucket)
    assert (await bucket.status()).values == 1, "written once"


async def test_a_store_that_goes_away_while_waited_for_is_waited_for(kit: BucketKit) -> None:
    async with unapplied(kit) as role, asyncio.TaskGroup() as group:
        waiting = group.create_task(role.writer.put(target(kit.bucket, wait=True), b"1"))
        await kit.until(lambda: kit.link.applying > 0)
        kit.link.away = True
        kit.link.applies_open.set()
        looks = kit.link.source_looks
        await kit.until(lambda: kit.link.source_looks > looks + 1)
        assert not waiting.done()
        kit.link.away = False
    assert waiting.result().applied == (kit.bucket,)


async def test_a_source_deleted_while_waited_for_ends_the_wait(kit: BucketKit) -> None:
    async with unapplied(kit) as role:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(pending_reason(role, kit.bucket))
            await kit.until(lambda: kit.link.applying > 0)
            await kit.link.delete_source(kit.bucket)
            kit.link.applies_open.set()
        assert "no source" in waiting.result()


async def pending_reason(role: IngestRole, bucket: str) -> str:
    """Why a write with a wait was not applied."""
    try:
        await role.writer.put(target(bucket, wait=True), b"1")
    except ApplyPending as error:
        return error.message
    return ""


async def test_waiters_of_one_source_share_its_polls(kit: BucketKit) -> None:
    async with unapplied(kit) as role:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(role.writer.put(target(kit.bucket, b"%d" % number, wait=True), b"1"))
                for number in range(50)
            ]
            await kit.until(lambda: kit.link.applying > 0 and kit.link.source_looks > 0)
            kit.link.applies_open.set()
        assert {task.result().revision for task in tasks} == set(range(1, 51))
        assert kit.link.source_looks < 100
        assert not role.writer._applied._watched


async def test_a_caller_that_leaves_leaves_nothing_behind(kit: BucketKit) -> None:
    async with unapplied(kit) as role:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(role.writer.put(target(kit.bucket, b"a", wait=True), b"1"))
            second = group.create_task(role.writer.put(target(kit.bucket, b"b", wait=True), b"1"))
            await kit.until(lambda: kit.link.applying > 0 and kit.link.source_looks > 0)
            first.cancel()
            await asyncio.wait((first,))
            # Who looked for both is gone; the other goes on by itself.
            kit.link.applies_open.set()
        assert second.result().applied == (kit.bucket,)
        assert not role.writer._applied._watched
        assert (role.writer._writes._taken, role.writer._bytes._taken, role.writer._waits._taken) == (0, 0, 0)


async def test_a_write_that_nats_does_not_permit_is_a_definite_refusal_at_once(tmp_path: Path) -> None:
    rights = '{ publish: { deny: ["$KV.b.Mine.>"] } }'
    users = f'authorization {{ users: [ {{ user: "a", password: "a", permissions: {rights} }} ] }}\n'
    with running_nats(tmp_path, config=users) as server:
        async with bucket_kit(f"nats://a:a@{server.address}", tmp_path, "b") as kit:
            await kit.make_bucket()
            async with kit.ingest() as role, asyncio.timeout(HANG_S):
                await role.connection.wait_connected()
                with pytest.raises(BucketForbids) as forbidden:
                    await role.writer.put(target("b", b"Mine.k"), b"1")
                assert forbidden.value.metadata["setting"] == "permissions"
                assert (await role.writer.put(target("b", b"k"), b"1")).revision == 1
                assert not role.connection._publishing


async def test_a_bucket_of_another_jetstream_domain_is_written_through_it(tmp_path: Path) -> None:
    async with breakable_kit(tmp_path, config="jetstream { domain: hub }\n") as (_server, kit):
        await kit.make_bucket()
        async with kit.ingest(nats_domain="hub") as role:
            await role.connection.wait_connected()
            assert (await role.writer.put(target("b"), b"1")).revision == 1
            with pytest.raises(KeyExists):
                await role.writer.create(target("b"), b"2")


async def test_a_store_that_hangs_takes_no_longer_than_the_call_has(
    kit: BucketKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await kit.make_copied_bucket()

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    async with kit.ingest() as role, asyncio.timeout(HANG_S):
        await kit.is_state("LIVE")
        with monkeypatch.context() as hanging:
            hanging.setattr(kit.link, "get_source", hang)
            with pytest.raises(ApplyPending, match="did not answer in time"):
                await role.writer.put(target(kit.bucket, wait=True, s=0.2), b"1")
            hanging.setattr(kit.link, "list_sources", hang)
            with pytest.raises(StoreUnreachable):
                await role.writer.put(target(kit.bucket, wait=True, s=0.2), b"2")
    assert (await bucket.status()).values == 1


def is_publishing(role: IngestRole) -> bool:
    """True = a write is in flight."""
    return any(subject.startswith("$kv.") for subject in role.connection._publishing)


async def test_a_caller_that_leaves_in_the_write_leaves_nothing_behind(tmp_path: Path) -> None:
    async with own_server(tmp_path) as (server, _at, role):
        bucket = await role.writer._jetstream.bucket("b")
        server.freeze()
        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as group:
            publishing = group.create_task(unknown(role, bucket))
            asking = group.create_task(role.writer.put(target("b"), bytes(1000)))
            while not (is_publishing(role) and role.writer._bytes._taken):  # noqa: ASYNC110 - two tasks begin
                await asyncio.sleep(0)
            publishing.cancel()
            asking.cancel()
        assert (role.writer._writes._taken, role.writer._bytes._taken) == (0, 0)
        assert not is_publishing(role)
        server.thaw()
        assert (await role.writer.put(target("b"), b"2")).revision in {1, 2}
