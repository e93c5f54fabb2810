"""Creation of a source with its topics, by a call or from the sources file; and changes of one.

I1: a refused creation leaves nothing: the source is checked first, and a topic is created only where none of its name
exists. If the store refuses the source all the same, which takes a race, the topics that this call created are deleted
again unless they have got a source or records meanwhile; the store checks that in the same step. A call that meets a
topic and finds it gone a moment later creates it again. A caller or a store that fails in between may leave an empty
topic.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from eddyline.core.auth.grant import on_own_behalf
from eddyline.core.errors import (
    Code,
    EddylineError,
    InvalidArgument,
    SourceNotFound,
    TopicHasSource,
    TopicNotFound,
)
from eddyline.core.model import source
from eddyline.core.model.source import changed_source
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.ingest.copy.dead_letters import LETTERS_CONFIG, check_kind, ensure_topic
from eddyline.ingest.copy.filter import check_filters
from eddyline.ingest.nats.stream import BUCKET_PATTERN, STREAM_PATTERN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.model.source import SourceChange, SourceDefinition, SourceInfo
    from eddyline.core.model.topic import TopicInfo
    from eddyline.core.store_link.protocol import StoreLink


TRIES: Final = 8
"""Each lost to another call that created a topic of the name and deleted it within this call's time."""
_UNDECIDED: Final = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.INTERNAL)
"""Codes of errors after which the source may exist."""


def check_new_source(definition: SourceDefinition) -> None:
    """Refuse a definition that no store can accept.

    Raises:
        InvalidName, InvalidArgument.
    """
    if definition.stream and not STREAM_PATTERN.fullmatch(definition.stream):
        text = definition.stream[:300]
        raise InvalidArgument(f"{text!r} is not a valid stream name", field="stream", stream=text)
    if not definition.stream and not BUCKET_PATTERN.fullmatch(definition.bucket):
        text = definition.bucket if len(definition.bucket) <= 300 else definition.bucket[:300] + "…"
        raise InvalidArgument(f"{text!r} is not a valid bucket name", field="bucket", bucket=text)
    source.check_definition(definition)
    check_filters(definition)


async def create_source(link: StoreLink, definition: SourceDefinition, config: TopicConfig) -> SourceInfo:
    """Return the source, created if it is missing; `config` applies to its topic, where that is created too.

    Raises:
        SourceExists: another definition under its name. As `ensure_topic`; TopicHasSource, TopicNotEmpty.
    """
    tries = 0
    while True:
        try:
            return await _create_source(link, definition, config)
        except TopicNotFound:  # the call that created it deleted it again
            tries += 1
            if tries == TRIES:
                raise


async def _create_source(link: StoreLink, definition: SourceDefinition, config: TopicConfig) -> SourceInfo:
    created: list[TopicInfo] = []
    try:
        try:
            await link.get_source(definition.name)
        except SourceNotFound:
            await _check_topics(link, definition)
            await ensure_topic(link, definition.topic, kind_of(definition), config, created)
            if definition.dead_letter_topic:
                await ensure_topic(link, definition.dead_letter_topic, Kind.LOG, LETTERS_CONFIG, created)
        info, _ = await link.put_source(definition)
    except EddylineError as error:
        if error.code not in _UNDECIDED:
            await _delete_created(link, created)
        raise
    return info


async def _delete_created(link: StoreLink, created: Sequence[TopicInfo]) -> None:
    """Delete topics that were created for a refused source, except those that are in use by now.

    Only sources know which topic their dead letters go to; one that adopts the topic at this very moment creates it again
    with its first letter.
    """
    in_use: set[str] = set()
    if created:
        with suppress(EddylineError), on_own_behalf():
            in_use = {other.definition.dead_letter_topic for other in await link.list_sources()}
    for topic in created:
        if topic.name in in_use:
            continue
        # Where the topic is in use by now, or the store cannot write, the caller gets the error of the refused source. A
        # caller that may create topics need not be one that may delete them.
        with suppress(EddylineError), on_own_behalf():
            await link.delete_topic(topic.name, if_epoch=topic.epoch, if_empty=True, if_no_source=True)


async def update_source(link: StoreLink, name: str, change: SourceChange) -> SourceInfo:
    """Return the source with changed settings; a dead-letter topic that is missing is created.

    Raises:
        SourceNotFound, InvalidName, InvalidArgument, NotLog, TopicHasSource, and errors of a store that cannot answer.
    """
    definition = changed_source((await link.get_source(name)).definition, change)
    check_new_source(definition)
    if change.dead_letter_topic:
        info = await _topic_of(link, definition.dead_letter_topic, Kind.LOG)
        if info is not None:
            _check_letters(info)
        await ensure_topic(link, definition.dead_letter_topic, Kind.LOG, LETTERS_CONFIG)
    return await link.update_source(name, change)


async def _check_topics(link: StoreLink, definition: SourceDefinition) -> None:
    """Check existing topics before any is created: their kinds, and that no source writes into the dead-letter topic.

    Raises:
        NotKv, NotLog, TopicHasSource.
    """
    await _topic_of(link, definition.topic, kind_of(definition))
    if definition.dead_letter_topic:
        letters = await _topic_of(link, definition.dead_letter_topic, Kind.LOG)
        if letters is not None:
            _check_letters(letters)
    for other in await link.list_sources():
        if other.definition.dead_letter_topic == definition.topic:
            raise TopicHasSource(
                f"topic {definition.topic} receives the dead letters of source {other.definition.name}; use another topic",
                topic=definition.topic,
                source=other.definition.name,
            )


async def _topic_of(link: StoreLink, name: str, kind: Kind) -> TopicInfo | None:
    """Return the topic; None = it does not exist.

    Raises:
        NotKv, NotLog: it is of another kind.
    """
    try:
        info = await link.get_topic(name)
    except TopicNotFound:
        return None
    check_kind(info, kind)
    return info


def _check_letters(info: TopicInfo) -> None:
    if info.source:
        raise TopicHasSource(
            f"topic {info.name} is written by source {info.source}; use another topic for dead letters",
            topic=info.name,
            source=info.source,
        )


def kind_of(definition: SourceDefinition) -> Kind:
    """Kind of topic that a source writes."""
    return Kind.LOG if definition.stream else Kind.KV
