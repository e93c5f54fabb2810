"""Conversion between topics and catalog entries. State that an entry lacks is rebuilt from the log after the checkpoint.

Threading: event loop (`encode_catalog_topic`), or recovery before it serves (`restore_catalog_topic`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.errors import DataCorrupt
from eddyline.core.model.source import ControlState, definition_of
from eddyline.store.catalog.catalog import SourceEntry, TopicEntry, WriterEntry
from eddyline.store.log.control import segment_of
from eddyline.store.log.floors import Floors
from eddyline.store.log.idempotency_keys import KeyedAppend
from eddyline.store.log.seq_set import BadSeqSet, SeqSet
from eddyline.store.log.sources import ReplayedSource
from eddyline.store.log.topic import Topic

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.store.log.idempotency_keys import KeyBudget
    from eddyline.store.log.sources import RegisteredSource, SourceTable


def encode_catalog_topic(topic: Topic, source: SourceEntry | None, *, clean: bool = False) -> TopicEntry:
    """Encode a topic at a moment when no append of it is in flight. `clean` = the store stops: an EPHEMERAL topic's
    reservation is given back, so that its next seq is the one after its head."""
    ends = clean and topic.is_ephemeral
    return TopicEntry(
        id=topic.id,
        name=topic.name,
        kind=topic.kind,
        config=topic.config,
        config_version=topic.config_version,
        create_ts_ms=topic.create_ts_ms,
        head_seq=topic.head_seq,
        last_ts_ms=topic.last_ts_ms,
        reserved_seq=topic.head_seq if ends else topic.reserved_seq,
        has_records=topic.has_records,
        cap_floor=topic.floors.cap,
        ttl_floor=topic.floors.ttl,
        ephemeral_floor=topic.floors.ephemeral,
        delete_floor=topic.floors.delete,
        compacted_floor=topic.floors.compacted,
        record_bytes=topic.record_bytes,
        segmented_seq=topic.segmented_seq,
        segments=tuple(segment.summary for segment in topic.segments),
        next_generation=topic.next_generation,
        base=topic.base,
        fold_lost=topic.fold_lost,
        base_wanted=topic.base_wanted,
        deleted=topic.deleted_seqs.serialize(),
        gaps=topic.uncounted.serialize(),
        erase_due_ms=topic.erase_due_ms,
        writers=tuple(
            WriterEntry(name, writer.fence, writer.stored, writer.moved_ms) for name, writer in topic.stored_writers()
        ),
        source=source,
        keys=tuple(topic.remembered_keys()),
    )


def source_of(topic: Topic, sources: SourceTable) -> SourceEntry | None:
    """Return the catalog entry of a topic's source; None = the topic has no source."""
    source = sources.find(topic.source) if topic.source else None
    if source is None:
        return None
    return source_entry(source)


def source_entry(source: RegisteredSource | ReplayedSource) -> SourceEntry:
    """Encode a source, in memory or as replayed from frames."""
    definition, lease = source.definition, (source.fence, source.holder, source.lease_ms)
    return SourceEntry(definition.name, definition.bucket, *lease, definition.settings, *source.control, source.stop)


def restore_catalog_topic(entry: TopicEntry, topic_dir: Path, key_budget: KeyBudget) -> Topic:
    """Build the topic of an entry, without its source.

    Raises:
        DataCorrupt: a bitmap cannot be decoded.
    """
    topic = Topic(
        name=entry.name,
        topic_id=entry.id,
        kind=entry.kind,
        config=entry.config,
        create_ts_ms=entry.create_ts_ms,
        key_budget=key_budget,
    )
    topic.config_version = entry.config_version
    topic.head_seq = topic.staged_seq = entry.head_seq
    topic.last_ts_ms = entry.last_ts_ms
    topic.reserved_seq = topic.staged_reserved_seq = entry.reserved_seq
    topic.has_records = entry.has_records
    topic.floors = Floors(
        entry.cap_floor, entry.ttl_floor, entry.ephemeral_floor, entry.delete_floor, entry.compacted_floor
    )
    topic.record_bytes = topic.staged_bytes = entry.record_bytes
    topic.segmented_seq = entry.segmented_seq
    topic.next_generation = entry.next_generation
    topic.base = entry.base
    topic.fold_lost = entry.fold_lost
    topic.base_wanted = entry.base_wanted
    topic.erase_due_ms = entry.erase_due_ms
    try:
        topic.deleted_seqs = SeqSet.deserialize(entry.deleted)
        topic.uncounted = SeqSet.deserialize(entry.gaps)
    except BadSeqSet as error:
        raise DataCorrupt(f"topic {entry.name} in the catalog: {error}", file="catalog", offset=0) from error
    if entry.segments:
        topic.change_segments(add=[segment_of(summary, topic_dir) for summary in entry.segments])
    for writer, fence, position, last_ms in entry.writers:
        topic.writers.commit(writer, fence, position, now_ms=last_ms)
    for key, done in entry.keys:
        topic.keys.commit(key, KeyedAppend(*done))
    return topic


def source_from(entry: TopicEntry) -> ReplayedSource | None:
    """Decode the source of an entry's topic; None = the topic has no source.

    Raises:
        DataCorrupt: the settings cannot be decoded.
    """
    source = entry.source
    if source is None:
        return None
    try:
        definition = definition_of(source.name, entry.name, source.bucket, source.settings)
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(f"source {source.name} in the catalog: {error}", file="catalog", offset=0) from error
    orders = ControlState(source.paused, source.resync_serial)
    return ReplayedSource(definition, source.fence, source.holder, source.lease_ms, orders, source.stop)
