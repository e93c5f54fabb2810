"""Making a source exist, with its topic, for whoever asks: a call or the sources file.

I1: what is refused leaves nothing: the source is judged first, and a topic is made only where none of its name is there,
which nothing but a race or a store that cannot write can then refuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.errors import InvalidArgument, NotKv, SourceNotFound, TopicExists, TopicNotFound
from eddyline.core.topic import Kind, check_name
from eddyline.ingest.stream import BUCKET_PATTERN

if TYPE_CHECKING:
    from eddyline.core.source import SourceDefinition, SourceInfo
    from eddyline.core.store_link import StoreLink
    from eddyline.core.topic import TopicConfig, TopicInfo


def check_definition(definition: SourceDefinition) -> None:
    """Refuse what cannot be a source, whatever the store has.

    Raises:
        InvalidName, InvalidArgument.
    """
    check_name(definition.name, "source")
    check_name(definition.topic, "topic")
    if not BUCKET_PATTERN.fullmatch(definition.bucket):
        shown = definition.bucket if len(definition.bucket) <= 300 else definition.bucket[:300] + "…"
        raise InvalidArgument(f"no bucket can be called {shown!r}", field="bucket", bucket=shown)


async def create_source(link: StoreLink, definition: SourceDefinition, config: TopicConfig) -> SourceInfo:
    """The source, made if it is missing; `config` is of its topic, where that is made too.

    Raises:
        SourceExists: another definition under its name. As `ensure_topic`; TopicHasSource, TopicNotEmpty.
    """
    try:
        await link.get_source(definition.name)
    except SourceNotFound:
        await ensure_topic(link, definition.topic, config)
    info, _ = await link.put_source(definition)
    return info


async def ensure_topic(link: StoreLink, name: str, config: TopicConfig) -> TopicInfo:
    """The topic, made as a KV topic if it is missing.

    Raises:
        InvalidName, NotKv, QuotaTopics, and what tells that the store cannot answer.
    """
    try:
        info = await link.get_topic(name)
    except TopicNotFound:
        try:
            info = await link.create_topic(name, Kind.KV, config)
        except TopicExists:
            info = await link.get_topic(name)
    if info.kind is not Kind.KV:
        raise NotKv(f"topic {name} is a LOG; a source needs a KV topic", topic=name)
    return info
