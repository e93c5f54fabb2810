"""UpdateSource: policies change durably, and the holder applies them without losing or repeating a record."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import (
    EddylineError,
    InvalidArgument,
    InvalidName,
    NotLog,
    SourceNotFound,
    TopicHasSource,
    TopicNotFound,
)
from eddyline.core.model.source import SourceChange, SourceDefinition
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.ingest.copy.dead_letters import LETTERS_CONFIG
from eddyline.ingest.rpc.source_service import source_change_from_pb
from eddyline.ingest.sources.creation import update_source
from eddyline.v1 import apply_pb2, source_pb2
from tests.support.ingest.kit import LEASE_MS

if TYPE_CHECKING:
    from eddyline.ingest.role import IngestRole
    from tests.support.ingest.kit import SourceKit

KNOWN = SourceDefinition("s", "t", "b", key_prefixes=(b"a", b"\xff"), subjects=("c.*",))


async def put_unfit(sources: SourceKit, bucket_name: str, key: str) -> None:
    """Put a message with more headers than a record may have."""
    headers = {f"H{number}": "x" for number in range(100)}
    await sources.js.publish(f"$KV.{bucket_name}.{key}", b"misfit", headers=headers)


async def update(sources: SourceKit, role: IngestRole, **changes: str) -> None:
    role.ownership.apply_control(await update_source(sources.link, "s", SourceChange(**changes)))  # type: ignore[arg-type]


async def test_oversize_source_goes_on_when_it_gets_a_dead_letter_topic(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    await bucket.put("a", b"1")
    await put_unfit(sources, bucket_name, "a")
    last = await bucket.put("b", b"2")
    async with sources.ingest():
        await sources.is_state("s", "OVERSIZE")
        reason = (await sources.link.get_source("s")).report.reason
        assert "set it aside with `eddyline source update s --dead-letter-topic TOPIC`" in reason
        # Said at another replica: the holder learns it with its renewal, long before it would look again by itself.
        await update_source(sources.link, "s", SourceChange(dead_letter_topic="letters"))
        await sources.until(lambda: _reached(sources, last), seconds=LEASE_MS / 1000 + 2)
        await sources.is_state("s", "LIVE")
    assert (await sources.link.get_topic("letters")).config == LETTERS_CONFIG
    assert [row.data for row in await sources.rows("letters")] == [b"misfit"]
    assert await sources.fold("t") == {b"a": b"1", b"b": b"2"}
    assert await sources.gaps("t") == [(2, 2)]


async def _reached(sources: SourceKit, revision: int) -> bool:
    return await sources.revision("s") >= revision


async def test_expired_source_goes_on_when_its_policy_is_to_resync(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_bucket(bucket_name)
    await sources.define(SourceDefinition("s", "t", bucket_name, on_expired="STOP"))
    async with sources.ingest():
        await sources.reaches("s", await bucket.put("a", b"1"))
    config = (await sources.js.stream_info(f"KV_{bucket_name}")).config
    await sources.js.update_stream(config.evolve(max_msgs=2, discard="old"))
    for number in range(5):
        await bucket.put(f"k{number}", b"x")
    async with sources.ingest() as role:
        await sources.is_state("s", "CURSOR_EXPIRED")
        await update(sources, role, on_recreated="RESYNC")  # which is not what stopped it
        await sources.is_state("s", "CURSOR_EXPIRED")
        assert await sources.fold("t") == {b"a": b"1"}
        await update(sources, role, on_expired="RESYNC")
        await sources.is_state("s", "LIVE")
    assert await sources.fold("t") == {b"k3": b"x", b"k4": b"x"}
    assert await sources.gaps("t") == [(2, 4)]


async def test_recreated_bucket_is_adopted_after_the_policy_changes(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    async with sources.ingest() as role:
        await sources.reaches("s", await bucket.put("a", b"1"))
        await sources.js.delete_key_value(bucket_name)
        bucket = await sources.make_bucket(bucket_name)
        await bucket.put("b", b"2")
        await sources.is_state("s", "STREAM_RECREATED")
        await update(sources, role, on_recreated="RESYNC")
        await sources.is_state("s", "LIVE")
    assert await sources.fold("t") == {b"b": b"2"}


async def test_live_source_that_is_changed_all_the_time_loses_and_repeats_nothing(
    sources: SourceKit, bucket_name: str
) -> None:
    bucket = await sources.make_copied_bucket(bucket_name)
    async with sources.ingest() as role:
        await sources.is_state("s", "LIVE")
        for number in range(60):
            last = await bucket.put(f"k{number % 7}", b"%d" % number)
            if number % 6 == 0:
                letters = ("letters", "others", "")[number // 6 % 3]
                await update(sources, role, on_expired=("STOP", "RESYNC")[number // 6 % 2], dead_letter_topic=letters)
        await sources.reaches("s", last)
        await sources.is_state("s", "LIVE")
    assert [row.data for row in await sources.rows("t")] == [b"%d" % number for number in range(60)]
    assert await sources.gaps("t") == []


async def test_source_without_its_dead_letter_topic_stops_again(sources: SourceKit, bucket_name: str) -> None:
    bucket = await sources.make_bucket(bucket_name)
    await sources.define(SourceDefinition("s", "t", bucket_name, dead_letter_topic="letters"))
    await put_unfit(sources, bucket_name, "a")
    async with sources.ingest() as role:
        await sources.reaches("s", await bucket.put("b", b"1"))
        await update(sources, role, dead_letter_topic="")
        await put_unfit(sources, bucket_name, "c")
        await sources.is_state("s", "OVERSIZE")
    assert len(await sources.rows("letters")) == 1


async def test_paused_source_takes_a_change_and_stays_paused(sources: SourceKit, bucket_name: str) -> None:
    await sources.make_copied_bucket(bucket_name)
    await put_unfit(sources, bucket_name, "a")
    await sources.link.control_source("s", paused=True)
    async with sources.ingest() as role:
        await sources.is_state("s", "PAUSED")
        await update(sources, role, dead_letter_topic="letters")
        assert (await sources.link.get_source("s")).control.paused
        role.ownership.apply_control(await sources.link.control_source("s", paused=False))
        await sources.is_state("s", "LIVE")
    assert len(await sources.rows("letters")) == 1


@pytest.mark.parametrize(
    ("name", "letters", "error"),
    [
        ("nobody", "letters", SourceNotFound),
        ("s", "t", InvalidArgument),  # its own topic
        ("s", "-", InvalidName),
        ("s", "kv", NotLog),
        ("s", "events", TopicHasSource),
    ],
)
async def test_dead_letter_topic_that_cannot_be_one_is_refused_and_nothing_is_changed(
    sources: SourceKit, bucket_name: str, name: str, letters: str, error: type[EddylineError]
) -> None:
    definition = SourceDefinition("s", "t", bucket_name)
    await sources.define(definition)
    await sources.define(SourceDefinition("other", "events", stream="EVENTS"))
    await sources.link.create_topic("kv", Kind.KV, TopicConfig())
    with pytest.raises(error):
        await update_source(sources.link, name, SourceChange(dead_letter_topic=letters))
    assert (await sources.link.get_source("s")).definition == definition
    with pytest.raises(TopicNotFound):
        await sources.link.get_topic("letters")


@pytest.mark.parametrize(
    ("requested", "field"),
    [
        ({"name": "other"}, "name"),
        ({"topic": "other"}, "topic"),
        ({"bucket": "other"}, "bucket"),
        ({"stream": "other"}, "stream"),
        ({"key_prefixes": [b"a"]}, "key_prefixes"),
        ({"subjects": ["c.*", "d"]}, "subjects"),
    ],
)
def test_what_is_settled_is_refused_by_its_name_with_what_to_do(requested: dict[str, object], field: str) -> None:
    definition = apply_pb2.SourceDefinition(**requested)  # type: ignore[arg-type]  # one field of any type
    request = source_pb2.UpdateSourceRequest(source="s", definition=definition)
    with pytest.raises(InvalidArgument, match="create another source with its own topic") as refused:
        source_change_from_pb(request, KNOWN)
    assert refused.value.metadata == {"field": field}


def test_update_with_an_unchanged_definition_and_another_policy_is_accepted() -> None:
    definition = apply_pb2.SourceDefinition(
        name="s",
        topic="t",
        bucket="b",
        key_prefixes=KNOWN.key_prefixes,
        subjects=KNOWN.subjects,
        on_recreated=apply_pb2.SOURCE_POLICY_RESYNC,
    )
    request = source_pb2.UpdateSourceRequest(source="s", definition=definition)
    assert source_change_from_pb(request, KNOWN) == SourceChange(on_recreated="RESYNC")
    request.clear_dead_letter_topic = True
    assert source_change_from_pb(request, replace(KNOWN, dead_letter_topic="x")) == SourceChange(None, "RESYNC", "")
    request.definition.dead_letter_topic = "y"
    with pytest.raises(InvalidArgument):
        source_change_from_pb(request, KNOWN)
