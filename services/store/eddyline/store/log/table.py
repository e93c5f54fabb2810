"""All topics of a shard, by name and by id, and the next id.

I1: an id is assigned once: the next is above every id ever seen in the log, those of deleted topics included.
Threading: event loop only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import islice, takewhile
from typing import Final

from eddyline.core.errors import DataCorrupt, TopicNotFound
from eddyline.core.model.topic import check_name
from eddyline.store.log.idempotency_keys import KeyBudget
from eddyline.store.log.index import LogTotals
from eddyline.store.log.topic import Topic

SHARD_SHIFT: Final = 48
START_SHIFT: Final = 40
"""Delete marks of a start are above those of every earlier start: 2^40 deletes a topic fit between them."""


class TopicTable:
    """The topics of one shard. `start` counts the starts of its directory. Delete marks belong to one start: they count the
    replayed deletes too, and how many are replayed differs from start to start."""

    def __init__(self, shard_index: int, *, start: int = 0) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self._first_id = self._next_id = (shard_index << SHARD_SHIFT) + 1
        self._first_mark = start << START_SHIFT
        self._sorted: list[str] | None = None
        self.key_budget = KeyBudget()
        self.totals = LogTotals()
        self.dirty: set[Topic] = set()
        """Topics that changed since the last checkpoint wrote them."""
        self.gone: set[int] = set()
        """Ids of topics deleted since then."""
        self.grown: set[Topic] = set()
        """Topics with new frames since the last check whether one is due to be sealed."""
        self.framed: set[Topic] = set()
        """Topics that may have unsegmented frames."""
        self.reserved: set[Topic] = set()
        """Topics that may have reserved seqs which they do not use."""
        self.segmented: set[Topic] = set()
        """Topics that may have segments, or need a new base."""

    def __len__(self) -> int:
        return len(self._by_id)

    def take_id(self) -> int:
        """Return the next id and advance it; the TopicCreate frame makes it durable before it is visible."""
        topic_id = self._next_id
        self._next_id += 1
        return topic_id

    def saw_id(self, topic_id: int) -> bool:
        """True = this shard once assigned the id, to a live or a deleted topic."""
        return self._first_id <= topic_id < self._next_id

    @property
    def next_id(self) -> int:
        """The smallest id that was never assigned."""
        return self._next_id

    def skip_ids(self, next_id: int) -> None:
        """Mark the ids below `next_id` as assigned."""
        self._next_id = max(self._next_id, next_id)

    def add(self, topic: Topic) -> None:
        """Add a created topic."""
        assert topic.name not in self._by_name
        self._by_name[topic.name] = topic
        self._sorted = None
        self.replayed(topic)

    def replayed(self, topic: Topic) -> None:
        """Add a topic of the catalog, or one created in the replay; it can be found by name after `name_all`."""
        topic.delete_mark = self._first_mark
        topic.count_in(self.totals)
        self._by_id[topic.id] = topic
        self.reserved.add(topic)
        self.skip_ids(topic.id + 1)
        self.dirty.add(topic)
        if len(topic.segments) or topic.base_wanted:
            self.segmented.add(topic)

    def name_all(self) -> None:
        """Index every live topic by its name: the replay is over.

        Raises:
            DataCorrupt: two of them have one name.
        """
        for topic in self._by_id.values():
            other = self._by_name.setdefault(topic.name, topic)
            if other is not topic:
                raise DataCorrupt(
                    f"topics {other.id} and {topic.id} both have the name {topic.name}", file="catalog", offset=0
                )
        self._sorted = None

    def remove(self, topic: Topic) -> None:
        """Remove a deleted topic."""
        if self._by_name.get(topic.name) is topic:
            del self._by_name[topic.name]
            self._sorted = None
        del self._by_id[topic.id]
        topic.count_in(None)
        self.dirty.discard(topic)
        self.framed.discard(topic)
        self.grown.discard(topic)
        self.reserved.discard(topic)
        self.segmented.discard(topic)
        self.gone.add(topic.id)
        topic.deleted = True
        if topic.has_keys:
            topic.keys.clear()

    def by_id(self, topic_id: int) -> Topic | None:
        """Return the topic with this id, or None."""
        return self._by_id.get(topic_id)

    def find(self, name: str) -> Topic | None:
        """Return the topic of this name, or None."""
        return self._by_name.get(name)

    def get(self, name: str) -> Topic:
        """Return the topic of this name.

        Raises:
            InvalidName: no topic can have this name.
            TopicNotFound: there is none.
        """
        topic = self._by_name.get(name)
        if topic is None:
            check_name(name, "topic")
            raise TopicNotFound(f"no topic {name}", topic=name)
        return topic

    def has_grown(self, topic: Topic) -> None:
        """Mark a topic that got a frame."""
        self.framed.add(topic)
        self.grown.add(topic)

    def with_frames(self) -> list[Topic]:
        """Return the topics that have unsegmented frames."""
        self.framed = {topic for topic in self.framed if len(topic.index) and not topic.deleted}
        return list(self.framed)

    def with_segments(self) -> list[Topic]:
        """Return the topics that have segments, or need a new base."""
        self.segmented = {
            topic for topic in self.segmented if (len(topic.segments) or topic.base_wanted) and not topic.deleted
        }
        return list(self.segmented)

    def all(self) -> list[Topic]:
        """Iterate over every topic, in no order."""
        return list(self._by_id.values())

    def page(self, name_prefix: str, after_name: str, limit: int) -> list[Topic]:
        """Return up to `limit` topics above `after_name` that start with `name_prefix`, in order of their names."""
        if self._sorted is None:
            self._sorted = sorted(self._by_name)
        start = max(bisect_right(self._sorted, after_name), bisect_left(self._sorted, name_prefix))
        names = takewhile(lambda name: name.startswith(name_prefix), islice(self._sorted, start, start + limit))
        return [self._by_name[name] for name in names]
