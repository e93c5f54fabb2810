"""Catalog entries for tests: plain ones, rich ones, and any there may be."""

from __future__ import annotations

from hypothesis import strategies as st

from eddyline.core.model.source import SourceStop
from eddyline.core.model.topic import Discard, Durability, Kind, TopicConfig
from eddyline.store.catalog.catalog import (
    BaseEntry,
    CatalogHead,
    KeyEntry,
    SourceEntry,
    TopicEntry,
    WalPosition,
    WriterEntry,
)
from eddyline.store.storage.segment.footer import SegmentSummary

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

CONFIGS = st.builds(
    TopicConfig,
    durability=st.sampled_from(Durability),
    idempotency_window_ms=U32,
    ttl_ms=U32,
    cap_records=st.integers(0, 1 << 53),
    cap_bytes=st.integers(0, 1 << 53),
    discard=st.sampled_from(Discard),
    priority=st.none() | st.integers(-1000, 1000),
    dedupe_node=st.booleans(),
)
SEGMENTS = st.builds(SegmentSummary, *[U64] * 7, *[I64] * 3)
WRITERS = st.builds(WriterEntry, TEXTS, U64, st.binary(max_size=30), I64)
STOPS = st.none() | st.builds(SourceStop, TEXTS, TEXTS, st.binary(max_size=49))
KEYS = st.tuples(st.binary(max_size=30), st.tuples(st.binary(min_size=16, max_size=16), U64, U64, I64))
PARTS = st.binary(max_size=40) | st.integers(1, 200_000).map(lambda size: bytes(range(251)) * (size // 251 + 1))
ENTRIES = st.builds(
    TopicEntry,
    id=st.integers(0, 5) | U64,
    name=TEXTS,
    kind=st.sampled_from(Kind),
    config=CONFIGS,
    config_version=U32,
    create_ts_ms=I64,
    head_seq=U64,
    last_ts_ms=I64,
    reserved_seq=U64,
    has_records=st.booleans(),
    cap_floor=U64,
    ttl_floor=U64,
    ephemeral_floor=U64,
    delete_floor=U64,
    record_bytes=U64,
    segmented_seq=U64,
    segments=st.lists(SEGMENTS, max_size=20).map(tuple),
    next_generation=U64,
    base=st.none() | st.builds(BaseEntry, U64, U64, U64, U64),
    fold_lost=st.booleans(),
    deleted=PARTS,
    gaps=PARTS,
    erase_due_ms=I64,
    writers=st.lists(WRITERS, max_size=20).map(tuple),
    source=st.none() | st.builds(SourceEntry, TEXTS, TEXTS, U64, TEXTS, I64, TEXTS, st.booleans(), U64, STOPS),
    keys=st.lists(KEYS, max_size=20).map(tuple),
)
HEADS = st.builds(
    CatalogHead,
    checkpoint=U64,
    store_id=TEXTS,
    next_topic_id=U64,
    wal=st.lists(st.builds(WalPosition, U32, U64, U64, I64), max_size=3).map(tuple),
    garbage=st.lists(TEXTS, max_size=3).map(tuple),
)


def head(checkpoint: int = 1) -> CatalogHead:
    """A head of a store with one WAL shard."""
    return CatalogHead(checkpoint, "0f0e0d0c", 9, (WalPosition(0, checkpoint + 1, checkpoint, 4096),), ())


def segment(number: int = 0) -> SegmentSummary:
    """The `number`-th of a topic's segments, a thousand records each."""
    first = number * 1000 + 1
    return SegmentSummary(first, first + 999, number + 1, 1000, 1, 64_000, 81_234, 1_700_000_000_000 + first, 0, -1)


def key(number: int) -> KeyEntry:
    """An idempotency key."""
    return b"request-%08d" % number, (number.to_bytes(16, "big"), number + 1, number + 2, 1_700_000_000_000)


def plain_topic(topic_id: int, *, head_seq: int = 1000) -> TopicEntry:
    """A topic with one segment and nothing else."""
    return TopicEntry(
        id=topic_id,
        name=f"topic.{topic_id}",
        kind=Kind.LOG,
        config=TopicConfig(),
        config_version=1,
        create_ts_ms=1_700_000_000_000,
        head_seq=head_seq,
        last_ts_ms=1_700_000_000_999,
        reserved_seq=65_536,
        has_records=True,
        cap_floor=0,
        ttl_floor=0,
        ephemeral_floor=0,
        delete_floor=0,
        record_bytes=64_000,
        segmented_seq=1000,
        segments=(segment(),),
        next_generation=2,
        base=None,
        fold_lost=False,
        deleted=b"",
        gaps=b"",
        erase_due_ms=0,
        writers=(),
        source=None,
        keys=(),
    )


def rich_topic(topic_id: int) -> TopicEntry:
    """A topic with everything, small."""
    return TopicEntry(
        id=topic_id,
        name="orders:é",
        kind=Kind.KV,
        config=TopicConfig(Durability.FSYNC, 1, 2, 3, 4, Discard.REJECT, -5, dedupe_node=False),
        config_version=7,
        create_ts_ms=-1,
        head_seq=(1 << 64) - 1,
        last_ts_ms=(1 << 63) - 1,
        reserved_seq=12,
        has_records=True,
        cap_floor=13,
        ttl_floor=14,
        ephemeral_floor=15,
        delete_floor=16,
        record_bytes=17,
        segmented_seq=18,
        segments=(segment(0), segment(1)),
        next_generation=19,
        base=BaseEntry(20, 21, 22, 23),
        fold_lost=True,
        deleted=b"deleted bitmap",
        gaps=b"gap bitmap",
        erase_due_ms=24,
        writers=(WriterEntry("w", 25, b"\x00position", 26), WriterEntry("ü", 1, b"", 0)),
        source=SourceEntry("source", "bucket", 27, "ingest-0", 28),
        keys=(key(1), (b"", (bytes(16), 0, 0, 0))),
    )
