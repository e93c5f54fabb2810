"""Sources whose topic has a cap: a batch above it goes in parts, and a full topic is the reason, with its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from nats.js.api import StreamConfig

from eddyline.core.model.source import SourceChange, SourceDefinition
from eddyline.core.model.topic import ConfigChange, Discard, Kind, TopicConfig
from eddyline.ingest.sources.creation import create_source, update_source

if TYPE_CHECKING:
    from tests.support.ingest.kit import SourceKit


async def make_stream(sources: SourceKit, name: str, **config: object) -> None:
    await sources.js.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], **config))  # type: ignore[arg-type]


async def publish(sources: SourceKit, name: str, count: int, *, start: int = 0) -> int:
    for number in range(start, start + count):
        last = (await sources.js.publish(f"{name}.a", b"%d" % number)).seq
    return last


@pytest.mark.parametrize("cap", [{"cap_records": 3}, {"cap_bytes": 150}], ids=["records", "bytes"])
async def test_backlog_larger_than_the_cap_is_copied_in_pieces(
    sources: SourceKit, bucket_name: str, cap: dict[str, int]
) -> None:
    await make_stream(sources, bucket_name)
    last = await publish(sources, bucket_name, 40)
    await create_source(sources.link, SourceDefinition("s", "t", stream=bucket_name), TopicConfig(**cap))  # type: ignore[arg-type]
    async with sources.ingest():
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
    assert (await sources.link.get_topic("t")).head_seq == 40, "each once"
    kept = [row.data for row in await sources.rows("t")]
    assert kept == [b"%d" % number for number in range(40 - len(kept), 40)]


async def test_full_topic_is_the_reason_with_its_remedy_and_loses_or_repeats_nothing(
    sources: SourceKit, bucket_name: str
) -> None:
    await make_stream(sources, bucket_name)
    last = await publish(sources, bucket_name, 40)
    config = TopicConfig(cap_records=16, discard=Discard.REJECT)
    await create_source(sources.link, SourceDefinition("s", "t", stream=bucket_name), config)
    async with sources.ingest():
        await sources.is_state("s", "RECOVERING")
        reason = (await sources.link.get_source("s")).report.reason
        assert reason.startswith("topic t is full")
        assert "raise its cap (`eddyline topic update`)" in reason
        await sources.link.update_topic("t", ConfigChange(cap_records=100))
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
        assert (await sources.link.get_source("s")).report.reason == ""
    assert [row.data for row in await sources.rows("t")] == [b"%d" % number for number in range(40)]


async def test_record_larger_than_the_cap_stops_the_source_with_the_cap_to_raise(
    sources: SourceKit, bucket_name: str
) -> None:
    await make_stream(sources, bucket_name)
    await sources.js.publish(f"{bucket_name}.a", b"x" * 1_000)
    definition = SourceDefinition("s", "t", stream=bucket_name)
    await create_source(sources.link, definition, TopicConfig(cap_bytes=500))
    async with sources.ingest():
        await sources.is_state("s", "OVERSIZE")
        assert "raise its cap (`eddyline topic update`)" in (await sources.link.get_source("s")).report.reason


async def test_deletes_and_gaps_of_a_resync_go_into_a_small_topic(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_bucket(bucket_name, history=1)
    definition = SourceDefinition("s", "t", bucket_name)
    await create_source(sources.link, definition, TopicConfig(cap_records=2))
    async with sources.ingest():
        for number in range(9):
            await sources.reaches("s", await bucket.put(f"k{number}", b"1"))
    await sources.js.purge_stream(f"KV_{bucket_name}")
    last = await bucket.put("new", b"2")
    async with sources.ingest() as role:
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
        assert await sources.fold("t") == {b"new": b"2"}
        await sources.js.delete_key_value(bucket_name)  # and another one under the name
        bucket = await sources.make_bucket(bucket_name, history=1)
        for number in range(9):
            await bucket.put(f"n{number}", b"3")
        role.ownership.apply_control(await update_source(sources.link, "s", SourceChange(on_recreated="RESYNC")))
        expected = {b"n%d" % number: b"3" for number in range(9)}
        await sources.until(lambda: _is_fold(sources, expected))
        await sources.is_state("s", "LIVE")


async def _is_fold(sources: SourceKit, expected: dict[bytes, bytes]) -> bool:
    return await sources.fold("t") == expected


async def test_gaps_stay_in_their_places_where_a_batch_is_cut(sources: SourceKit, bucket_name: str) -> None:
    await make_stream(sources, bucket_name)
    last = await publish(sources, bucket_name, 30)
    for revision in (4, 5, 11, 12, 13, 20, 27):
        await sources.js.delete_msg(bucket_name, revision)
    config = TopicConfig(cap_records=4)
    await sources.link.create_topic("t", Kind.LOG, config)
    await create_source(sources.link, SourceDefinition("s", "t", stream=bucket_name), config)
    async with sources.ingest():
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
    assert (await sources.link.get_topic("t")).head_seq == 30 - 7 + 4, "23 records and four gaps, each once"
