"""All topics of a shard, by name and by id, and the growing id.

I1: an id is given once: the next is above every id ever seen in the log, deleted topics' included.
Threading: event loop only.
"""

from __future__ import annotations

from typing import Final

from eddyline.core.errors import TopicNotFound
from eddyline.core.topic import check_name
from eddyline.store.log.dedupe import KeyBudget
from eddyline.store.log.topic import Topic

SHARD_SHIFT: Final = 48


class TopicTable:
    """The topics of one shard."""

    def __init__(self, shard_index: int) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self._next_id = (shard_index << SHARD_SHIFT) + 1
        self.key_budget = KeyBudget()

    def __len__(self) -> int:
        return len(self._by_id)

    def take_id(self) -> int:
        """The next id; it is durable with the TopicCreate frame, before anybody sees it."""
        topic_id = self._next_id
        self._next_id += 1
        return topic_id

    def saw_id(self, topic_id: int) -> bool:
        """True = the id was given once, whether its topic still lives or not."""
        return topic_id < self._next_id

    def add(self, topic: Topic) -> None:
        """A topic was created."""
        assert topic.name not in self._by_name
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic
        self._next_id = max(self._next_id, topic.id + 1)

    def remove(self, topic: Topic) -> None:
        """A topic was deleted."""
        del self._by_name[topic.name]
        del self._by_id[topic.id]
        topic.deleted = True
        topic.keys.clear()

    def by_id(self, topic_id: int) -> Topic | None:
        """The topic with this id, if it lives."""
        return self._by_id.get(topic_id)

    def find(self, name: str) -> Topic | None:
        """The topic of this name, if it lives."""
        return self._by_name.get(name)

    def get(self, name: str) -> Topic:
        """The topic of this name.

        Raises:
            InvalidName: the name cannot be a topic's.
            TopicNotFound: there is none.
        """
        topic = self._by_name.get(name)
        if topic is None:
            check_name(name, "topic")
            raise TopicNotFound(f"no topic {name}", topic=name)
        return topic

    def all(self) -> list[Topic]:
        """Every topic, in no order."""
        return list(self._by_id.values())

    def page(self, name_prefix: str, after_name: str, limit: int) -> list[Topic]:
        """Up to `limit` topics in order of their names, those above `after_name` that start with `name_prefix`."""
        names = sorted(n for n in self._by_name if n > after_name and n.startswith(name_prefix))
        return [self._by_name[name] for name in names[:limit]]
