"""Whether a source can be made: what is there, and what it is to be.

Threading: event loop; pure look-ups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.errors import NotKv, NotLog, TopicHasSource, TopicNotEmpty
from eddyline.core.model.topic import Kind

if TYPE_CHECKING:
    from eddyline.core.model.source import SourceDefinition
    from eddyline.store.log.topic import Topic


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
