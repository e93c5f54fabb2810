"""Difference between stored and new state: the keys a catalog write puts and deletes; also the topics from all stored
keys.

Both catalogs keep one. It remembers which pieces each large topic has, a few bytes a topic, and nothing of the others, so
a write need not read.

I1: it matches the stored keys once `read` has ended, and after each `commit`. I2: an unexpected key is damage: the first
key is the head, every other one is a topic's record, or a piece that such a record references.
Threading: as the catalog's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eddyline.store.catalog.codec import (
    HASH_BYTES,
    HEAD_KEY,
    TOPIC_KEY,
    TOPIC_PREFIX,
    corrupt,
    decode_topic,
    encode_head,
    encode_topic,
    topic_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from eddyline.store.catalog.catalog import CatalogHead, TopicEntry


class KeyValue(NamedTuple):
    """One key and its value."""

    key: bytes
    value: bytes


class KeyChanges(NamedTuple):
    """One write: all puts and deletes, and the pieces that each of its topics has afterwards."""

    puts: list[KeyValue]
    deletes: list[bytes]
    pieces: dict[int, frozenset[bytes]]


class CatalogDiff:
    """Tracks the stored pieces; see the module's docstring. Errors name `file`."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._pieces: dict[int, frozenset[bytes]] = {}
        self._read = False

    def read(self, stored: Iterable[KeyValue]) -> Iterator[TopicEntry]:
        """Yield the topics from all stored keys in ascending order.

        Raises:
            DataCorrupt, NewerFormat.
        """
        record: KeyValue | None = None
        pieces: dict[bytes, bytes] = {}
        has_head = False
        for item in stored:
            key = item.key
            if record is not None and len(key) == TOPIC_KEY.size + HASH_BYTES and key.startswith(record.key):
                pieces[key] = item.value
                continue
            if record is not None:
                yield self._topic(record, pieces)
                record, pieces = None, {}
            if key == HEAD_KEY:
                has_head = True
            elif has_head and len(key) == TOPIC_KEY.size and key.startswith(TOPIC_PREFIX):
                record = item
            else:
                raise corrupt(key, "belongs to no topic" if has_head else "has no head before it", self._file)
        if record is not None:
            yield self._topic(record, pieces)
        self._read = True

    def changes(self, head: CatalogHead, changed: Sequence[TopicEntry], removed: Sequence[int]) -> KeyChanges:
        """Return the puts and deletes for a write of `head`, the topics `changed` and the topics `removed`."""
        assert self._read, "load before the first write"
        ids = [entry.id for entry in changed] + list(removed)
        assert len(set(ids)) == len(ids), "a topic is changed or removed, once"
        puts, deletes = [KeyValue(HEAD_KEY, encode_head(head))], list[bytes]()
        pieces: dict[int, frozenset[bytes]] = {}
        none = frozenset[bytes]()
        for entry in changed:
            encoded = encode_topic(entry)
            puts.append(KeyValue(encoded.key, encoded.record))
            previous = self._pieces.get(entry.id, none)
            if previous or encoded.pieces:
                pieces[entry.id] = frozenset(encoded.pieces)
                puts.extend(KeyValue(key, piece) for key, piece in encoded.pieces.items() if key not in previous)
                deletes.extend(sorted(previous - encoded.pieces.keys()))
        for topic_id in removed:
            deletes.append(topic_key(topic_id))
            previous = self._pieces.get(topic_id, none)
            if previous:
                pieces[topic_id] = none
                deletes.extend(sorted(previous))
        return KeyChanges(puts, deletes, pieces)

    def commit(self, changes: KeyChanges) -> None:
        """Record that the write of `changes` is durable."""
        for topic_id, pieces in changes.pieces.items():
            if pieces:
                self._pieces[topic_id] = pieces
            else:
                self._pieces.pop(topic_id, None)

    def _topic(self, record: KeyValue, pieces: dict[bytes, bytes]) -> TopicEntry:
        entry = decode_topic(record.key, record.value, pieces, self._file)
        if pieces:
            self._pieces[entry.id] = frozenset(pieces)
        return entry
