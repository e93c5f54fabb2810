"""Pause, resume and resync of a source, and the effect of its policies."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import SourceNotFound
from eddyline.core.model.source import SourceDefinition
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.ingest.copy.position import decode_position
from eddyline.ingest.nats.jetstream import TIMEOUT_S, JetStream
from eddyline.ingest.role import RESYNCS_AT_ONCE
from tests.support.ingest.kit import source_kit
from tests.support.nats.server import running_nats

if TYPE_CHECKING:
    from pathlib import Path

    from nats.js.kv import KeyValue

    from eddyline.ingest.copy.position import StreamPosition
    from eddyline.ingest.nats.stream import Stream
    from tests.support.ingest.kit import SourceKit


async def make_again(sources: SourceKit, name: str) -> KeyValue:
    await sources.js.delete_key_value(name)
    return await sources.make_bucket(name)


async def configure(sources: SourceKit, name: str, **changes: object) -> None:
    config = (await sources.js.stream_info(f"KV_{name}")).config
    await sources.js.update_stream(config.evolve(**changes))


async def position_of(sources: SourceKit) -> StreamPosition:
    """Return the stored position of `s`."""
    position = decode_position((await sources.link.get_source("s")).position)
    assert position is not None
    return position


async def test_paused_source_copies_nothing_until_it_is_resumed_where_it_was(
    sources: SourceKit, bucket_name: str
) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    async with sources.ingest() as role:
        await sources.reaches("s", await bucket.put("a", b"1"))
        await sources.is_state("s", "LIVE")
        role.ownership.apply_control(await sources.link.control_source("s", paused=True))
        await sources.is_state("s", "PAUSED")
        assert not await sources.js.consumers_info(f"KV_{bucket_name}")
        last = await bucket.put("a", b"2")
        assert await sources.revision("s") < last
        role.ownership.apply_control(await sources.link.control_source("s", paused=False))
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
    assert [row.data for row in await sources.rows("t")] == [b"1", b"2"]


@pytest.mark.parametrize("waits", [True, False], ids=["paused", "pausing"])
async def test_resumed_source_is_not_live_before_it_has_caught_up(
    sources: SourceKit, bucket_name: str, waits: bool
) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    async with sources.ingest() as role:
        await sources.reaches("s", await bucket.put("a", b"1"))
        await sources.is_state("s", "LIVE")
        role.ownership.apply_control(await sources.link.control_source("s", paused=True))
        if waits:
            await sources.is_state("s", "PAUSED")
        for number in range(50):
            last = await bucket.put(f"k{number}", b"2")
        role.ownership.apply_control(await sources.link.control_source("s", paused=False))
        seen = role.ownership.current(await sources.link.get_source("s"))
        assert (seen.report.state, seen.reported_ms) == ("CATCHING_UP", 0)

        async def is_live() -> bool:
            info = role.ownership.current(await sources.link.get_source("s"))
            assert info.report.state != "LIVE" or await sources.revision("s") == last
            return info.report.state == "LIVE"

        await sources.until(is_live)


async def test_pause_holds_over_a_takeover_and_is_learned_from_the_renewal(
    sources: SourceKit, bucket_name: str
) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    await bucket.put("a", b"1")
    await sources.link.control_source("s", paused=True)
    async with sources.ingest(holder="first"):
        await sources.is_state("s", "PAUSED")
    async with sources.ingest(holder="second"):
        await sources.is_state("s", "PAUSED")
        assert await sources.revision("s") == 0
        await sources.link.control_source("s", paused=False)  # said at another replica
        await sources.is_state("s", "LIVE")
    assert await sources.fold("t") == {b"a": b"1"}


async def test_lag_of_a_paused_source_grows(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    async with sources.ingest(audit_interval_s=0.05) as role:
        await sources.reaches("s", await bucket.put("a", b"1"))
        role.ownership.apply_control(await sources.link.control_source("s", paused=True))
        await sources.is_state("s", "PAUSED")
        last = 0
        for _ in range(3):
            last = await bucket.put("a", b"2")

        async def is_told() -> bool:
            report = (await sources.link.get_source("s")).report
            return (report.last_revision, report.lag) == (last, 3)

        await sources.until(is_told)


async def test_pause_that_comes_while_a_source_resyncs_is_not_missed(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    async with sources.ingest():
        await sources.reaches("s", await bucket.put("a", b"1"))
    async with sources.ingest() as role, AsyncExitStack() as turns:
        for _ in range(RESYNCS_AT_ONCE):
            await turns.enter_async_context(role.ownership.resyncs)
        await sources.is_state("s", "RESYNCING")
        role.ownership.apply_control(await sources.link.control_source("s", paused=True))
        await turns.aclose()
        await sources.is_state("s", "PAUSED")


async def test_resume_is_not_held_up_by_a_question_that_nats_leaves_unanswered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source_stream, requested = JetStream.source_stream, asyncio.Event()

    async def noted(jetstream: JetStream, definition: SourceDefinition) -> Stream:
        requested.set()
        try:
            return await source_stream(jetstream, definition)
        finally:
            requested.clear()

    monkeypatch.setattr(JetStream, "source_stream", noted)
    with running_nats(tmp_path / "nats") as server:
        async with source_kit(server.url, tmp_path) as sources:
            await sources.make_bucket("b")
            await sources.define(SourceDefinition("s", "t", "b"))
            await sources.link.control_source("s", paused=True)
            async with sources.ingest(audit_interval_s=0.02) as role:
                await sources.is_state("s", "PAUSED")
                await role.connection.wait_connected()
                server.freeze()
                await asyncio.wait_for(requested.wait(), 5)
                role.ownership.apply_control(await sources.link.control_source("s", paused=False))

                async def goes_on() -> bool:
                    return await sources.state("s") != "PAUSED"

                await sources.until(goes_on, seconds=TIMEOUT_S / 2)
                server.thaw()
                await sources.is_state("s", "LIVE")


async def test_source_is_paused_and_resumed_while_nats_is_away(sources: SourceKit, bucket_name: str) -> None:
    await sources.define(SourceDefinition("s", "t", bucket_name))
    sources.url = "nats://127.0.0.1:1"
    async with sources.ingest() as role:
        await sources.is_state("s", "CONNECTING")
        role.ownership.apply_control(await sources.link.control_source("s", paused=True))
        await sources.is_state("s", "PAUSED")
        role.ownership.apply_control(await sources.link.control_source("s", paused=False))
        await sources.is_state("s", "RECOVERING")


async def test_recreated_bucket_stops_the_source_and_a_resync_takes_it_as_it_is(
    sources: SourceKit, bucket_name: str
) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    for key in ("gone", "same", "other", "deleted"):
        await bucket.put(key, b"1")
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        bucket = await make_again(sources, bucket_name)
        await bucket.put("same", b"1")
        await bucket.put("other", b"2")
        await bucket.put("new", b"3")
        await bucket.delete("deleted")
        await sources.is_state("s", "STREAM_RECREATED")
        reason = (await sources.link.get_source("s")).report.reason
        date = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"
        assert re.search(f"was recreated: it was created at {date}, the copied one at {date}; ", reason)
        assert reason.endswith("`eddyline source resync s` copies its present state")
        assert (await sources.fold("t")).keys() == {b"gone", b"same", b"other", b"deleted"}
        role.ownership.apply_control(await sources.link.control_source("s", resync=True))
        await sources.is_state("s", "LIVE")
        await sources.reaches("s", await bucket.put("new", b"4"))
    assert await sources.gaps("t") == [(5, 0)], "what the old bucket had behind revision 4 nobody knows"
    assert await sources.fold("t") == {b"same": b"1", b"other": b"2", b"new": b"4"}
    changed = [(row.op, row.key) for row in (await sources.rows("t"))[4:]]
    assert sorted(changed) == sorted(
        [(Op.PUT, b"other"), (Op.PUT, b"new"), (Op.DELETE, b"deleted"), (Op.DELETE, b"gone"), (Op.PUT, b"new")]
    )
    control = (await sources.link.get_source("s")).control
    assert (await position_of(sources)).resync_serial == control.resync_serial == 1


async def test_every_revision_of_another_bucket_is_written_but_values_equal_to_the_fold(
    sources: SourceKit, bucket_name: str
) -> None:
    bucket = await sources.make_bucket(bucket_name)
    await sources.define(SourceDefinition("s", "t", bucket_name, on_recreated="RESYNC"))
    for value in (b"1", b"2"):
        await bucket.put("a", value)
    await bucket.put("same", b"1")
    async with sources.ingest():
        await sources.is_state("s", "LIVE")
    bucket = await make_again(sources, bucket_name)
    for key, value in (("same", b"1"), ("a", b"2"), ("a", b"3"), ("a", b"3"), ("a", b"4"), ("same", b"1"), ("b", b"5")):
        await bucket.put(key, value)
    await bucket.delete("b")
    await bucket.delete("b")
    last = (await sources.js.stream_info(f"KV_{bucket_name}")).state.last_seq  # above the old bucket's
    async with sources.ingest():
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
        await sources.reaches("s", await bucket.put("same", b"1"))  # from here on all is written
    written = [(row.op, row.key, row.data) for row in (await sources.rows("t"))[3:]]
    assert written == [
        (Op.PUT, b"a", b"3"),
        (Op.PUT, b"a", b"4"),
        (Op.PUT, b"b", b"5"),
        (Op.DELETE, b"b", None),
        (Op.PUT, b"same", b"1"),
    ]


async def test_recreated_bucket_is_adopted_by_a_source_with_that_policy(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_bucket(bucket_name)
    await sources.define(SourceDefinition("s", "t", bucket_name, on_recreated="RESYNC"))
    await bucket.put("a", b"1")
    await bucket.put("b", b"1")
    async with sources.ingest():
        await sources.is_state("s", "LIVE")
    bucket = await make_again(sources, bucket_name)
    await bucket.put("b", b"1")
    async with sources.ingest():
        await sources.until(lambda: _is_fold(sources, {b"b": b"1"}))
        await sources.is_state("s", "LIVE")
    async with sources.ingest():  # and is not compared again
        await sources.is_state("s", "LIVE")
    assert [(row.op, row.key) for row in (await sources.rows("t"))[2:]] == [(Op.DELETE, b"a")]


async def _is_fold(sources: SourceKit, expected: dict[bytes, bytes]) -> bool:
    return await sources.fold("t") == expected


async def test_unread_revisions_of_a_bucket_are_a_gap_when_another_is_adopted(
    sources: SourceKit, bucket_name: str
) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    async with sources.ingest() as role:
        await sources.reaches("s", await bucket.put("a", b"1"))
        role.ownership.apply_control(await sources.link.control_source("s", paused=True))
        await sources.is_state("s", "PAUSED")
    info = await sources.link.get_source("s")
    lease = await sources.link.acquire_lease("s", holder="test", lease_ms=60_000)
    # Somebody had seen revision 7 before the bucket went.
    await sources.link.renew_lease("s", fence=lease.fence, report=replace(info.report, last_revision=7))
    await sources.link.release_lease("s", fence=lease.fence)
    await make_again(sources, bucket_name)
    await sources.link.control_source("s", paused=False, resync=True)
    async with sources.ingest():
        await sources.until(lambda: _is_fold(sources, {}))
        await sources.is_state("s", "LIVE")
    assert await sources.gaps("t") == [(2, 7), (8, 0)]


async def test_bucket_that_is_away_keeps_the_fold_until_it_is_there_again(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    async with sources.ingest():
        await sources.reaches("s", await bucket.put("a", b"1"))
        await sources.js.delete_key_value(bucket_name)
        await sources.is_state("s", "SOURCE_LOST")
        assert await sources.fold("t") == {b"a": b"1"}
        await sources.make_bucket(bucket_name)
        await sources.is_state("s", "STREAM_RECREATED")
    assert await sources.fold("t") == {b"a": b"1"}


@pytest.mark.parametrize("policy", ["RESYNC", "STOP"])
async def test_revisions_evicted_while_away_are_a_gap_or_stop_the_source(
    sources: SourceKit, bucket_name: str, policy: str
) -> None:
    bucket = await sources.make_bucket(bucket_name)
    definition = SourceDefinition("s", "t", bucket_name)
    await sources.define(replace(definition, on_expired="STOP") if policy == "STOP" else definition)
    async with sources.ingest():
        await sources.reaches("s", await bucket.put("a", b"1"))
        await sources.is_state("s", "LIVE")
    await configure(sources, bucket_name, max_msgs=2, discard="old")
    for number in range(5):
        await bucket.put(f"k{number}", b"x")
    async with sources.ingest() as role:
        if policy == "STOP":
            await sources.is_state("s", "CURSOR_EXPIRED")
            assert (await sources.link.get_source("s")).report.reason.startswith(
                f"revisions 2 to 4 of bucket {bucket_name} were removed or overwritten before they were read; `eddyline"
            )
            assert await sources.fold("t") == {b"a": b"1"}
            role.ownership.apply_control(await sources.link.control_source("s", resync=True))
        await sources.is_state("s", "LIVE")
        assert await sources.fold("t") == {b"k3": b"x", b"k4": b"x"}
    assert await sources.gaps("t") == [(2, 4)]


async def test_rolled_back_bucket_keeps_the_fold_until_somebody_asks(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_bucket(bucket_name)
    await sources.define(SourceDefinition("s", "t", bucket_name, on_recreated="RESYNC"))
    async with sources.ingest():
        await bucket.put("a", b"1")
        await sources.reaches("s", await bucket.put("a", b"2"))
    # What a rollback looks like: the position's message is another one.
    position = await position_of(sources)
    await sources.move("s", replace(position, revision=position.revision + 5).encode())
    async with sources.ingest() as role:
        await sources.is_state("s", "CURSOR_AHEAD")
        assert await sources.fold("t") == {b"a": b"2"}
        role.ownership.apply_control(await sources.link.control_source("s", resync=True))
        await sources.is_state("s", "LIVE")
        await sources.reaches("s", await bucket.put("b", b"3"))
    assert await sources.fold("t") == {b"a": b"2", b"b": b"3"}


async def test_rolled_back_bucket_written_past_the_position_has_only_the_open_gap(
    sources: SourceKit, bucket_name: str
) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    async with sources.ingest():
        await sources.reaches("s", await bucket.put("a", b"1"))
        await sources.is_state("s", "LIVE")
    # What a rollback with new writes looks like: another message at the position, and more behind it.
    position = await position_of(sources)
    await sources.move("s", replace(position, sample=b"another message!").encode())
    await bucket.put("b", b"2")
    last = await bucket.put("c", b"3")
    async with sources.ingest() as role:
        await sources.is_state("s", "CURSOR_AHEAD")  # which looks at the stream once at least
        role.ownership.apply_control(await sources.link.control_source("s", resync=True))
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
    gaps = await sources.gaps("t")
    assert gaps == [(position.revision + 1, 0)]
    assert await sources.fold("t") == {b"a": b"1", b"b": b"2", b"c": b"3"}


async def test_resync_of_a_right_fold_writes_nothing(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    await bucket.put("a", b"1")
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        role.ownership.apply_control(await sources.link.control_source("s", resync=True))

        async def is_done() -> bool:
            return (await position_of(sources)).resync_serial == 1

        await sources.until(is_done)
        await sources.is_state("s", "LIVE")
    assert len(await sources.rows("t")) == 1


async def test_resync_requested_in_between_passes_no_revision_over(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    async with sources.ingest():
        await sources.reaches("s", await bucket.put("a", b"0"))
    for number in range(1, 6):
        last = await bucket.put("a", b"%d" % number)
    await sources.link.control_source("s", resync=True)
    async with sources.ingest():
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
    assert [row.data for row in await sources.rows("t")] == [b"%d" % number for number in range(6)]


async def test_fold_that_is_wrong_is_mended_by_a_resync(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    await bucket.put("a", b"1")
    await bucket.put("b", b"1")
    async with sources.ingest():
        await sources.is_state("s", "LIVE")
    wrong = [
        Record(op=Op.PUT, key=b"a", data=b"x"),
        Record(op=Op.DELETE, key=b"b"),
        Record(op=Op.PUT, key=b"c", data=b"x"),
    ]
    await sources.move("s", (await position_of(sources)).after_changes().encode(), Batch.from_rows(wrong))
    await sources.link.control_source("s", resync=True)
    async with sources.ingest():
        await sources.until(lambda: _is_fold(sources, {b"a": b"1", b"b": b"1"}))
        await sources.is_state("s", "LIVE")


async def test_control_of_a_missing_source_is_refused(sources: SourceKit) -> None:
    with pytest.raises(SourceNotFound):
        await sources.link.control_source("nobody", paused=True)
