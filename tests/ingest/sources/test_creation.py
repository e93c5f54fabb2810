"""Creation of a source: a refusal leaves nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from eddyline.core.errors import EddylineError, InvalidArgument, SourceExists, TopicHasSource, TopicNotEmpty
from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.ingest.sources.creation import check_new_source, create_source
from tests.support.store.simulated import sim_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from eddyline.core.model.source import SourceInfo
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.store.shard.shard import Shard

CERTS = SourceDefinition("certs", "certs", "CERTS")


async def test_equal_definition_is_answered_as_done() -> None:
    async with sim_store() as link:
        made = await create_source(link, CERTS, TopicConfig())
        assert await create_source(link, CERTS, TopicConfig(idempotency_window_ms=5)) == made
        assert [topic.name for topic in await link.list_topics("", "", 9)] == ["certs"]


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (SourceDefinition("certs", "other", "CERTS"), SourceExists),
        (SourceDefinition("certs", "certs", "OTHER"), SourceExists),
        (SourceDefinition("other", "certs", "CERTS"), TopicHasSource),
    ],
)
async def test_refused_source_leaves_no_topic(refused: SourceDefinition, error: type[EddylineError]) -> None:
    async with sim_store() as link:
        await create_source(link, CERTS, TopicConfig())
        with pytest.raises(error):
            await create_source(link, refused, TopicConfig())
        assert [topic.name for topic in await link.list_topics("", "", 9)] == ["certs"]
        assert [source.definition for source in await link.list_sources()] == [CERTS]


async def test_of_creates_at_once_all_but_one_are_refused_and_leave_no_topic() -> None:
    definitions = [
        SourceDefinition("certs", f"t{number}", "CERTS", dead_letter_topic=f"l{number}") for number in range(6)
    ]
    async with sim_store() as link:

        async def create(definition: SourceDefinition) -> bool:
            try:
                await create_source(link, definition, TopicConfig())
            except SourceExists:
                return False
            return True

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(create(definition)) for definition in definitions]
        assert [task.result() for task in tasks].count(True) == 1
        (source,) = await link.list_sources()
        topics = {topic.name for topic in await link.list_topics("", "", 99)}
        assert topics == {source.definition.topic, source.definition.dead_letter_topic}


class Interrupted:
    """A store link that runs another action right before a source is put."""

    def __init__(self, link: Shard, before: Callable[[], Awaitable[object]]) -> None:
        self._link = link
        self._before: Callable[[], Awaitable[object]] | None = before

    def __getattr__(self, name: str) -> object:
        return getattr(self._link, name)

    async def put_source(self, definition: SourceDefinition) -> tuple[SourceInfo, bool]:
        before, self._before = self._before, None
        if before is not None:
            await before()
        return await self._link.put_source(definition)


def interrupted(link: Shard, before: Callable[[], Awaitable[object]]) -> StoreLink:
    return cast("StoreLink", Interrupted(link, before))


async def test_topic_that_another_source_took_up_meanwhile_is_left_with_it() -> None:
    other = SourceDefinition("other", "certs", "OTHER")
    async with sim_store() as link:
        raced = interrupted(link, lambda: link.put_source(other))
        with pytest.raises(TopicHasSource):
            await create_source(raced, CERTS, TopicConfig())
        assert (await link.get_topic("certs")).source == "other"
        assert [source.definition for source in await link.list_sources()] == [other]


async def test_topic_with_records_is_left() -> None:
    async with sim_store() as link:
        raced = interrupted(
            link, lambda: link.append("certs", Batch.from_rows([Record(op=Op.PUT, key=b"k", data=b"v")]))
        )
        with pytest.raises(TopicNotEmpty):
            await create_source(raced, CERTS, TopicConfig())
        assert (await link.get_topic("certs")).head_seq == 1


async def test_topic_that_its_creator_deleted_meanwhile_is_created_again() -> None:
    async with sim_store() as link:
        raced = interrupted(link, lambda: link.delete_topic("certs"))
        await create_source(raced, CERTS, TopicConfig())
        assert (await link.get_topic("certs")).source == "certs"


async def test_topic_with_a_source_is_not_deleted_if_the_call_excludes_it() -> None:
    async with sim_store() as link:
        await create_source(link, CERTS, TopicConfig())
        with pytest.raises(TopicHasSource):
            await link.delete_topic("certs", if_empty=True, if_no_source=True)
        await link.delete_source("certs")
        await link.delete_topic("certs", if_empty=True, if_no_source=True)
        assert await link.list_topics("", "", 9) == []


@pytest.mark.parametrize("bucket", ["", "a.b", "b" * 256])
def test_bucket_that_no_store_takes_is_refused_before_anything_is_made(bucket: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check_new_source(SourceDefinition("certs", "certs", bucket))
    assert raised.value.metadata == {"field": "bucket", "bucket": bucket}


def test_longest_bucket_name_is_accepted() -> None:
    check_new_source(SourceDefinition("certs", "certs", "b" * 255))
