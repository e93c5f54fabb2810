"""Making a source exist: what is refused leaves nothing behind."""

from __future__ import annotations

import pytest

from eddyline.core.errors import EddylineError, InvalidArgument, SourceExists, TopicHasSource
from eddyline.core.source import SourceDefinition
from eddyline.core.topic import TopicConfig
from eddyline.ingest.creation import check_definition, create_source
from tests.support.store import sim_store

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


@pytest.mark.parametrize("bucket", ["", "a.b", "b" * 256])
def test_bucket_that_no_store_takes_is_refused_before_anything_is_made(bucket: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check_definition(SourceDefinition("certs", "certs", bucket))
    assert raised.value.metadata == {"field": "bucket", "bucket": bucket}


def test_longest_bucket_is_taken() -> None:
    check_definition(SourceDefinition("certs", "certs", "b" * 255))
