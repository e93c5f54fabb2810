"""All ways in which messages leave a bucket: times to live, markers, purges, rollups."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from eddyline.core.records.record import MARKER_REASON, GapReason, MetaEntry, Op
from tests.ingest.resync.test_resume import copied, gap_ranges
from tests.ingest.resync.test_stream_audit import AUDIT_S, healed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.support.ingest.kit import BucketKit

NO_LOOK_S: Final = 60.0
"""Audit interval of tests in which no audit may find the change."""


async def put_for_a_second(kit: BucketKit, key: str) -> int:
    """Put a value with the shortest life that the server accepts; returns its revision."""
    return (await kit.js.publish(f"$KV.{kit.bucket}.{key}", b"short", msg_ttl=1.0)).seq


async def rolled_up(kit: BucketKit, key: str, what: str) -> int:
    """Put a value that replaces its key's messages (`sub`), or all messages (`all`); returns its revision."""
    return (await kit.js.publish(f"$KV.{kit.bucket}.{key}", b"rolled up", headers={"Nats-Rollup": what})).seq


@asynccontextmanager
async def changed_at(
    kit: BucketKit, revision: int, change: Callable[[], Awaitable[object]], *, away: bool
) -> AsyncIterator[None]:
    """Run ingest, and change the bucket once all up to `revision` is copied: while ingest is away, or while it is live."""
    if away:
        await copied(kit, revision)
        await change()
    async with kit.ingest(audit_interval_s=AUDIT_S):
        await kit.reaches(revision)
        await kit.is_state("LIVE")
        if not away:
            await change()
        yield


async def test_key_whose_message_expires_without_a_marker_is_deleted_by_an_audit(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest(audit_interval_s=AUDIT_S):
        await bucket.put("kept", b"1")
        await kit.reaches(await put_for_a_second(kit, "short"))
        assert await kit.fold() == {"kept": b"1", "short": b"short"}
        await healed(kit, {"kept": b"1"})
    assert await kit.gaps() == []


async def test_b12_list_get_and_log_agree_that_an_expired_key_is_gone(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    async with kit.ingest(audit_interval_s=AUDIT_S):
        await bucket.put("kept", b"1")
        await kit.reaches(await put_for_a_second(kit, "short"))
        await healed(kit, {"kept": b"1"})
    listed = [
        key
        async for page in kit.store.range_entries(kit.bucket)
        if page.batch
        for key in page.batch.keys()  # noqa: SIM118
    ]
    got = (await kit.store.batch_get_entries(kit.bucket, [b"kept", b"short"])).entries
    assert listed == [b"kept"]
    assert [entry is not None for entry in got] == [True, False]
    assert (await kit.ops())[-1] == (Op.DELETE, b"short")


async def test_message_that_expires_with_a_marker_is_a_purge_without_an_audit(kit: BucketKit) -> None:
    # The server raises a message's life to that of the markers.
    bucket = await kit.make_copied_bucket(limit_marker_ttl=1)
    async with kit.ingest(audit_interval_s=NO_LOOK_S):
        await bucket.put("kept", b"1")
        await kit.reaches(await put_for_a_second(kit, "short"))
        await kit.reaches(3)
    assert (await kit.ops())[-1] == (Op.PURGE, b"short")
    assert await kit.fold() == {"kept": b"1"}


async def test_readers_tell_an_expiry_from_a_purge(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket(limit_marker_ttl=1)
    async with kit.ingest(audit_interval_s=NO_LOOK_S):
        await bucket.put("purged", b"1")
        await bucket.purge("purged")
        await kit.reaches(await put_for_a_second(kit, "expired"))
        await kit.reaches(4)
    ends = {record.key: record for record in await kit.records() if record.op == Op.PURGE}
    assert ends[b"expired"].meta == (MetaEntry(MARKER_REASON, b"MaxAge"),)
    assert ends[b"purged"].meta == ()


async def test_age_with_markers_gives_purges_without_an_audit(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket(ttl=1, limit_marker_ttl=60)
    async with kit.ingest(audit_interval_s=NO_LOOK_S):
        await bucket.put("a", b"1")
        await kit.reaches(await bucket.put("b", b"2"))
        await kit.reaches(4)
    assert sorted((await kit.ops())[-2:]) == [(Op.PURGE, b"a"), (Op.PURGE, b"b")]
    assert await kit.fold() == {}


async def test_marker_that_expired_while_ingest_was_away_still_deletes_its_key(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket(limit_marker_ttl=1)
    await bucket.put("kept", b"1")
    await copied(kit, await put_for_a_second(kit, "short"))
    await bucket.delete("kept")  # a marker of a client's has no life of its own, and stays
    while (await kit.js.stream_info(f"KV_{kit.bucket}")).state.messages != 2:
        await kit.client.flush()
    async with kit.ingest():
        await healed(kit, {})
    assert await kit.revision() == 4


@pytest.mark.parametrize("away", [False, True])
async def test_purge_that_keeps_the_newest_deletes_nothing(kit: BucketKit, away: bool) -> None:
    bucket = await kit.make_copied_bucket()
    for number in range(5):
        await bucket.put("a", b"%d" % number)
    last = await bucket.put("b", b"x")
    purge = partial(kit.js.purge_stream, f"KV_{kit.bucket}", subject=f"$KV.{kit.bucket}.a", keep=1)
    async with changed_at(kit, last, purge, away=away):
        await bucket.put("a", b"after")
        await healed(kit, {"a": b"after", "b": b"x"})
    assert [op for op, _ in await kit.ops()] == [Op.PUT] * 7


@pytest.mark.parametrize("away", [False, True])
async def test_purge_of_all_but_the_newest_messages_deletes_the_keys_of_the_rest(kit: BucketKit, away: bool) -> None:
    bucket = await kit.make_copied_bucket()
    for number in range(5):
        last = await bucket.put(f"k{number}", b"x")
    async with changed_at(kit, last, partial(kit.js.purge_stream, f"KV_{kit.bucket}", keep=2), away=away):
        await healed(kit, {"k3": b"x", "k4": b"x"})
    assert await kit.gaps() == []  # all of it had been read


async def test_purge_of_unread_revisions_is_a_gap(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket()
    await copied(kit, await bucket.put("a", b"1"))
    for number in range(5):
        await bucket.put(f"k{number}", b"x")
    await kit.js.purge_stream(f"KV_{kit.bucket}", seq=5)  # up to there, exclusive
    async with kit.ingest():
        await healed(kit, {"k3": b"x", "k4": b"x"})
    assert await gap_ranges(kit) == [(2, 4, GapReason.SOURCE_GAP)]


@pytest.mark.parametrize("away", [False, True])
async def test_rollup_of_a_key_leaves_its_value_and_the_others(kit: BucketKit, away: bool) -> None:
    bucket = await kit.make_copied_bucket()
    await bucket.put("other", b"1")
    last = await bucket.put("a", b"2")
    async with changed_at(kit, last, partial(rolled_up, kit, "a", "sub"), away=away):
        await kit.reaches(3)
        await healed(kit, {"other": b"1", "a": b"rolled up"})
    assert [op for op, _ in await kit.ops()] == [Op.PUT] * 3
    assert (await kit.records())[-1].meta == ()


@pytest.mark.parametrize("away", [False, True])
async def test_rollup_of_a_bucket_deletes_every_other_key(kit: BucketKit, away: bool) -> None:
    bucket = await kit.make_copied_bucket()
    await bucket.put("other", b"1")
    last = await bucket.put("a", b"2")
    async with changed_at(kit, last, partial(rolled_up, kit, "a", "all"), away=away):
        await kit.reaches(3)
        await healed(kit, {"a": b"rolled up"})
        await kit.reaches(await bucket.put("new", b"3"))
    assert (Op.DELETE, b"other") in await kit.ops()
    assert await kit.fold() == {"a": b"rolled up", "new": b"3"}


async def test_older_value_that_comes_back_by_an_expiry_is_named_by_a_comparison(kit: BucketKit) -> None:
    bucket = await kit.make_copied_bucket(history=5)
    async with kit.ingest(audit_interval_s=NO_LOOK_S) as role:
        older = await bucket.put("k", b"older")
        await kit.reaches(await put_for_a_second(kit, "k"))
        while (await bucket.get("k")).value != b"older":
            pass
        compared = await role.comparer.compare((await kit.source()).definition, name="compare", settle_s=0.01, limit=10)
    assert [(one.key, one.bucket_revision, one.fold_revision) for one in compared.differences] == [(b"k", older, 2)]
