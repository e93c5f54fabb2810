"""Whether a source can be made: what is there, and what it is to be.

Threading: event loop; pure look-ups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.errors import NotKv, NotLog, SourceExists, TopicHasSource, TopicNotEmpty
from eddyline.core.source_words import differences, is_updatable
from eddyline.core.topic import Kind

if TYPE_CHECKING:
    from eddyline.core.source import SourceDefinition
    from eddyline.store.log.topic import Topic


def exists_otherwise(there: SourceDefinition, asked: SourceDefinition) -> SourceExists:
    """Why a source cannot be made: it is there, and is another one."""
    found = differences(there, asked)
    said = ", ".join(f"{one.field} {one.there}, not {one.other}" for one in found)
    settled = {} if is_updatable(there, asked) else {"isSettled": "true"}
    return SourceExists(
        f"source {there.name} copies {there.origin} to topic {there.topic}; it differs in {said}",
        source=there.name,
        bucket=there.bucket,
        topic=there.topic,
        askedBucket=asked.bucket,
        askedTopic=asked.topic,
        fields=",".join(one.field for one in found),
        **settled,
    )


def check_takes_source(topic: Topic, definition: SourceDefinition) -> None:
    """Raises NotKv, NotLog, TopicHasSource or TopicNotEmpty where a topic cannot get a source."""
    if definition.stream and topic.kind is not Kind.LOG:
        raise NotLog(f"topic {topic.name} has a fold, a stream needs a LOG topic", topic=topic.name)
    if definition.bucket and topic.kind is not Kind.KV:
        raise NotKv(f"topic {topic.name} has no fold, a bucket needs one", topic=topic.name)
    if topic.source:
        raise TopicHasSource(f"topic {topic.name} has source {topic.source}", topic=topic.name, source=topic.source)
    if topic.has_records:
        raise TopicNotEmpty(f"topic {topic.name} has records; a source needs an empty topic", topic=topic.name)
