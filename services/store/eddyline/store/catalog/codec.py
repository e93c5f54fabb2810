"""Bytes of the catalog: one key for the head, one for each topic, and pieces of large parts.

    key "H"                             the head
    key "T", topic id u64 big-endian    a topic's record; its pieces follow in key order, so one pass reads both:
    key "T", topic id, xxh3_128         a piece of one of its parts: bytes with this hash

A topic's parts (segments, deleted, gaps, writers, keys) are in its record while they are small. A larger part is cut into
pieces, and the record lists their hashes. A piece is never changed, only referenced or not, so a checkpoint writes the new
pieces and deletes those no longer referenced. Keys are cut at each key whose own hash says so: keys added at the end and
removed at the front leave the pieces between unchanged. 100 000 keys are 8 MB, of which a checkpoint writes only new
pieces.

FORMAT.md has the grammar, tests/golden/catalog-1.bin to catalog-3.bin the bytes. Numbers are little-endian except the ids
in keys; control data is JSON with sorted keys, whose readers ignore unknown keys.
I1: each value carries a checksum seeded by its key, each piece is checked against its name: damaged or misplaced bytes are
`DataCorrupt`. I2: equal entries are equal bytes.
Threading: none; pure.
Rejected: a JSON object for each topic (base64 for everything large, and each key parsed 100 000 times at a start); column
families (one scan in key order needs none); pieces of idempotency keys by their number (every piece would change when the
oldest key is removed).
"""

from __future__ import annotations

import json
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Final, NamedTuple

from xxhash import xxh3_64_intdigest, xxh3_128_digest

from eddyline.core.errors import DataCorrupt, NewerFormat
from eddyline.core.model.source import SourceStop
from eddyline.core.model.topic import Discard, Durability, Kind, TopicConfig
from eddyline.store.catalog.catalog import (
    BaseEntry,
    CatalogHead,
    ErasingEntry,
    KeyEntry,
    SourceEntry,
    TopicEntry,
    WalPosition,
    WriterEntry,
)
from eddyline.store.storage.segment.footer import SegmentSummary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT: Final = 1
LATER_FORMAT: Final = 2
"""Format of a topic's record whose source has settings or control state, or that was imported, and of a head whose
replay was interrupted. All others use `FORMAT`."""
STOP_FORMAT: Final = 3
"""Format of a topic's record whose source has a stop that only a resync ends."""
HEAD_KEY: Final = b"H"
TOPIC_PREFIX: Final = b"T"
TOPIC_KEY: Final = Struct(">cQ")
HASH_BYTES: Final = 16

INLINE_BYTES_MAX: Final = 1024
"""A part up to this size is stored in the topic's record: 12 segments, some writers, a small bitmap. So nearly every
topic is one key."""
PIECE_BYTES: Final = 64 << 10
"""Size of a piece of a bitmap or of writers. Smaller pieces would be rewritten less but cost more keys."""
SEGMENTS_PER_PIECE: Final = 512
"""40 KB: a topic of 16 000 segments, a terabyte, writes the last of its 32 pieces when one more segment is sealed."""
KEYS_PER_PIECE: Final = 1024
"""Idempotency keys in a piece, on average: about 80 KB. A power of two."""
KEYS_PER_PIECE_MAX: Final = 4096

_CHECKSUM: Final = Struct("<Q")
_RECORD: Final = Struct("<BBHHHIIqQqQQQQQQQQqQQQQ10I")
_SEGMENT: Final = Struct("<QQQQQQQqqq")
_LENGTH: Final = Struct("<H")
_FENCE: Final = Struct("<Qq")
"""A fence, and a time or a duration."""
_KEY: Final = Struct("<16sQQq")
_CONTROL: Final = Struct("<BQ")
"""Whether a source is paused, and how many resyncs were requested."""

assert SegmentSummary._fields == (
    "first_seq",
    "last_seq",
    "generation",
    "rows",
    "gap_count",
    "record_bytes",
    "file_bytes",
    "first_ts_ms",
    "last_ts_ms",
    "source_ts_ns_max",
), "a segment is written and read in this order"
assert KEYS_PER_PIECE & (KEYS_PER_PIECE - 1) == 0

_HAS_RECORDS: Final = 1
_FOLD_LOST: Final = 2
_HAS_BASE: Final = 4
_HAS_SOURCE: Final = 8
_BASE_WANTED: Final = 16
_COMPACTED: Final = 32
"""The third floor is an import's, not that of an EPHEMERAL topic."""
_FLAGS: Final = {1: 31, 2: 63, 3: 63}
"""Allowed flags of each format."""
_NO_BASE: Final = BaseEntry(0, 0, 0, 0)

SETTINGS_KNOWN: Final = 1024
"""Cached translations of kinds with configurations: 100 000 topics share a few."""


class EncodedTopic(NamedTuple):
    """A topic's record with its key, and its pieces by key."""

    key: bytes
    record: bytes
    pieces: dict[bytes, bytes]


def topic_key(topic_id: int) -> bytes:
    """Return the key of a topic's record, which is the prefix of its pieces' keys."""
    return TOPIC_KEY.pack(TOPIC_PREFIX, topic_id)


def encode_head(head: CatalogHead) -> bytes:
    """Encode the value of `HEAD_KEY`."""
    body = {
        "checkpoint": head.checkpoint,
        "format": LATER_FORMAT if any(position.state_offset for position in head.wal) else FORMAT,
        "garbage": list(head.garbage),
        "next_topic_id": head.next_topic_id,
        "store_id": head.store_id,
        "wal": [{key: n for key, n in one._asdict().items() if n or key != "state_offset"} for one in head.wal],
    }
    if head.erasing:
        body["erasing"] = [entry._asdict() for entry in head.erasing]
    return _sealed(HEAD_KEY, _json(body))


def decode_head(value: bytes, file: str) -> CatalogHead:
    """Decode the value of `HEAD_KEY`. Errors name `file`.

    Raises:
        DataCorrupt: the checksum fails, or a field is missing. NewerFormat: a later version wrote it.
    """
    try:
        body = json.loads(_unsealed(HEAD_KEY, value, file))
        _check_format(HEAD_KEY, body["format"], file, newest=LATER_FORMAT)
        return CatalogHead(
            checkpoint=body["checkpoint"],
            store_id=body["store_id"],
            next_topic_id=body["next_topic_id"],
            wal=tuple(
                WalPosition(**{name: wal[name] for name in WalPosition._fields if name in wal}) for wal in body["wal"]
            ),
            garbage=tuple(body["garbage"]),
            erasing=tuple(
                ErasingEntry(erasing["topic_id"], erasing["due_ms"], erasing["folds"])
                for erasing in body.get("erasing", ())
            ),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise corrupt(HEAD_KEY, f"is not a catalog head: {error}", file) from error


def encode_topic(entry: TopicEntry) -> EncodedTopic:
    """Encode a topic's keys and values."""
    key = topic_key(entry.id)
    name, settings = entry.name.encode(), _encode_settings(entry.kind, entry.config)
    is_plain = entry.compacted_floor == 0 and (entry.source is None or entry.source.is_plain)
    source = b"" if entry.source is None else _encode_source(entry.source, is_plain=is_plain)
    pieces: dict[bytes, bytes] = {}
    sizes: list[int] = []
    parts: list[bytes] = []
    for cut in (
        _cut(b"".join([_SEGMENT.pack(*segment) for segment in entry.segments]), SEGMENTS_PER_PIECE * _SEGMENT.size),
        _cut(entry.deleted, PIECE_BYTES),
        _cut(entry.gaps, PIECE_BYTES),
        _cut(b"".join([_encode_writer(writer) for writer in entry.writers]), PIECE_BYTES) if entry.writers else (),
        _cut_keys(entry.keys) if entry.keys else (),
    ):
        size = sum(map(len, cut))
        if size <= INLINE_BYTES_MAX:
            sizes += (size, 0)
            parts += cut
        else:
            hashes = [xxh3_128_digest(piece) for piece in cut]
            sizes += (size, len(cut))
            parts += hashes
            pieces.update((key + hashed, piece) for hashed, piece in zip(hashes, cut, strict=True))
    fixed = _RECORD.pack(
        _format_of(entry, is_plain=is_plain),
        entry.has_records * _HAS_RECORDS
        | entry.fold_lost * _FOLD_LOST
        | (entry.base is not None) * _HAS_BASE
        | (entry.source is not None) * _HAS_SOURCE
        | entry.base_wanted * _BASE_WANTED
        | (entry.compacted_floor > 0) * _COMPACTED,
        len(name),
        len(settings),
        len(source),
        entry.config_version,
        0,
        entry.create_ts_ms,
        entry.head_seq,
        entry.last_ts_ms,
        entry.reserved_seq,
        entry.cap_floor,
        entry.ttl_floor,
        entry.compacted_floor or entry.ephemeral_floor,
        entry.delete_floor,
        entry.record_bytes,
        entry.segmented_seq,
        entry.next_generation,
        entry.erase_due_ms,
        *(entry.base or _NO_BASE),
        *sizes,
    )
    return EncodedTopic(key, _sealed(key, b"".join((fixed, name, settings, source, *parts))), pieces)


def decode_topic(key: bytes, record: bytes, pieces: Mapping[bytes, bytes], file: str) -> TopicEntry:
    """Decode a topic from its record and all pieces stored after it. Errors name `file`.

    Raises:
        DataCorrupt: a value is damaged, missing, or referenced by no part. NewerFormat: a later version wrote it.
    """
    body = _unsealed(key, record, file)
    try:
        _check_format(key, body[0], file, newest=STOP_FORMAT)
        return _decode_body(key, body, pieces, file)
    except (StructError, ValueError, KeyError, TypeError, IndexError) as error:
        raise corrupt(key, f"is not a catalog topic: {error}", file) from error


def _decode_body(key: bytes, body: bytes, pieces: Mapping[bytes, bytes], file: str) -> TopicEntry:
    (
        record_format,
        flags,
        name_len,
        settings_len,
        source_len,
        config_version,
        _,
        create_ts_ms,
        head_seq,
        last_ts_ms,
        reserved_seq,
        cap_floor,
        ttl_floor,
        third_floor,
        delete_floor,
        record_bytes,
        segmented_seq,
        next_generation,
        erase_due_ms,
        base_seq,
        base_generation,
        base_rows,
        base_file_bytes,
        *sizes,
    ) = _RECORD.unpack_from(body)
    if flags & ~_FLAGS[record_format]:
        raise corrupt(key, f"has unknown flags {flags:#x}", file)
    offset = _RECORD.size + name_len
    settings_end = offset + settings_len
    source_end = settings_end + source_len
    kind, config = _decode_settings(body[offset:settings_end])
    segments, deleted, gaps, writers, keys = _parts(key, body[source_end:], sizes, pieces, file)
    return TopicEntry(
        TOPIC_KEY.unpack(key)[1],
        body[_RECORD.size : offset].decode(),
        kind,
        config,
        config_version,
        create_ts_ms,
        head_seq,
        last_ts_ms,
        reserved_seq,
        flags & _HAS_RECORDS != 0,
        cap_floor,
        ttl_floor,
        0 if flags & _COMPACTED else third_floor,
        delete_floor,
        record_bytes,
        segmented_seq,
        tuple([SegmentSummary(*segment) for segment in _SEGMENT.iter_unpack(segments)]),
        next_generation,
        BaseEntry(base_seq, base_generation, base_rows, base_file_bytes) if flags & _HAS_BASE else None,
        flags & _FOLD_LOST != 0,
        deleted,
        gaps,
        erase_due_ms,
        _decode_writers(writers) if writers else (),
        _decode_source(body[settings_end:source_end], record_format) if flags & _HAS_SOURCE else None,
        _decode_keys(keys) if keys else (),
        flags & _BASE_WANTED != 0,
        third_floor if flags & _COMPACTED else 0,
    )


def _parts(key: bytes, tail: bytes, sizes: Sequence[int], pieces: Mapping[bytes, bytes], file: str) -> list[bytes]:
    """Return the bytes of each part; check that every piece is valid and belongs to a part."""
    parts: list[bytes] = []
    named = set[bytes]()
    offset = 0
    for size, count in zip(sizes[::2], sizes[1::2], strict=True):
        end = offset + (count * HASH_BYTES if count else size)
        part = tail[offset:end]
        if count:
            names = [part[start : start + HASH_BYTES] for start in range(0, len(part), HASH_BYTES)]
            part = b"".join([_piece(key, name, pieces, file) for name in names])
            named.update(names)
        if len(part) != size:
            raise corrupt(key, f"has a part of {len(part)} bytes, not {size}", file)
        parts.append(part)
        offset = end
    if offset != len(tail):
        raise corrupt(key, f"is {len(tail)} bytes after its source, not {offset}", file)
    if len(named) != len(pieces):
        raise corrupt(key, f"names {len(named)} pieces, and has {len(pieces)}", file)
    return parts


def _piece(key: bytes, name: bytes, pieces: Mapping[bytes, bytes], file: str) -> bytes:
    piece = pieces.get(key + name)
    if piece is None:
        raise corrupt(key, f"lacks its piece {name.hex()}", file)
    if xxh3_128_digest(piece) != name:
        raise corrupt(key, f"has a damaged piece {name.hex()}", file)
    return piece


def _cut(part: bytes, size: int) -> list[bytes]:
    return [part[start : start + size] for start in range(0, len(part), size)]


def _cut_keys(keys: Sequence[KeyEntry]) -> list[bytes]:
    """Cut keys into pieces: a piece begins at each key whose hash says so, whatever its place in the sequence."""
    pieces: list[bytes] = []
    piece: list[bytes] = []
    for key, done in keys:
        begins = not xxh3_64_intdigest(key) & (KEYS_PER_PIECE - 1)
        if piece and (begins or len(piece) == KEYS_PER_PIECE_MAX):
            pieces.append(b"".join(piece))
            piece = []
        assert len(done[0]) == HASH_BYTES
        piece.append(_prefixed(key) + _KEY.pack(*done))
    if piece:
        pieces.append(b"".join(piece))
    return pieces


def _decode_keys(part: bytes) -> tuple[KeyEntry, ...]:
    keys: list[KeyEntry] = []
    offset = 0
    while offset < len(part):
        key, end = _read_prefixed(part, offset)
        keys.append((key, _KEY.unpack_from(part, end)))
        offset = end + _KEY.size
    return tuple(keys)


def _encode_writer(entry: WriterEntry) -> bytes:
    return _FENCE.pack(entry.fence, entry.last_ms) + _prefixed(entry.writer.encode()) + _prefixed(entry.position)


def _decode_writers(part: bytes) -> tuple[WriterEntry, ...]:
    writers: list[WriterEntry] = []
    offset = 0
    while offset < len(part):
        fence, last_ms = _FENCE.unpack_from(part, offset)
        writer, offset = _read_prefixed(part, offset + _FENCE.size)
        position, offset = _read_prefixed(part, offset)
        writers.append(WriterEntry(writer.decode(), fence, position, last_ms))
    return tuple(writers)


def _encode_source(entry: SourceEntry, *, is_plain: bool) -> bytes:
    texts = (entry.name, entry.bucket, entry.holder)
    first = _FENCE.pack(entry.fence, entry.lease_ms) + b"".join([_prefixed(text.encode()) for text in texts])
    if is_plain:
        return first
    first += _prefixed(entry.settings.encode()) + _CONTROL.pack(entry.paused, entry.resync_serial)
    if entry.stop is None:
        return first
    state, reason, position = entry.stop
    return first + _prefixed(state.encode()) + _prefixed(reason.encode()) + _prefixed(position)


def _format_of(entry: TopicEntry, *, is_plain: bool) -> int:
    """Return the first format that can store all of a topic."""
    if entry.source is not None and entry.source.stop is not None:
        return STOP_FORMAT
    return FORMAT if is_plain else LATER_FORMAT


def _decode_source(part: bytes, record_format: int) -> SourceEntry:
    fence, lease_ms = _FENCE.unpack_from(part)
    name, offset = _read_prefixed(part, _FENCE.size)
    bucket, offset = _read_prefixed(part, offset)
    holder, offset = _read_prefixed(part, offset)
    settings, paused, resync_serial = b"", 0, 0
    stop = None
    if record_format >= LATER_FORMAT:
        settings, offset = _read_prefixed(part, offset)
        paused, resync_serial = _CONTROL.unpack_from(part, offset)
        offset += _CONTROL.size
    if record_format == STOP_FORMAT:
        state, offset = _read_prefixed(part, offset)
        reason, offset = _read_prefixed(part, offset)
        position, offset = _read_prefixed(part, offset)
        stop = SourceStop(state.decode(), reason.decode(), position)
    if offset != len(part) or paused > 1:
        raise ValueError("bytes after a source")
    texts = name.decode(), bucket.decode(), fence, holder.decode(), lease_ms, settings.decode()
    return SourceEntry(*texts, paused=bool(paused), resync_serial=resync_serial, stop=stop)


def _prefixed(cell: bytes) -> bytes:
    return _LENGTH.pack(len(cell)) + cell


def _read_prefixed(part: bytes, offset: int) -> tuple[bytes, int]:
    """Return a length-prefixed cell and its end."""
    start = offset + _LENGTH.size
    end = start + _LENGTH.unpack_from(part, offset)[0]
    if end > len(part):
        raise ValueError("a cell is cut short")
    return part[start:end], end


@lru_cache(SETTINGS_KNOWN)
def _encode_settings(kind: Kind, config: TopicConfig) -> bytes:
    return _json(
        {
            "cap_bytes": config.cap_bytes,
            "cap_records": config.cap_records,
            "dedupe_node": config.dedupe_node,
            "discard": config.discard.name,
            "durability": config.durability.name,
            "idempotency_window_ms": config.idempotency_window_ms,
            "kind": kind.name,
            "priority": config.priority,
            "ttl_ms": config.ttl_ms,
        }
    )


@lru_cache(SETTINGS_KNOWN)
def _decode_settings(settings: bytes) -> tuple[Kind, TopicConfig]:
    body = json.loads(settings)
    return Kind[body["kind"]], TopicConfig(
        durability=Durability[body["durability"]],
        idempotency_window_ms=body["idempotency_window_ms"],
        ttl_ms=body["ttl_ms"],
        cap_records=body["cap_records"],
        cap_bytes=body["cap_bytes"],
        discard=Discard[body["discard"]],
        priority=body["priority"],
        dedupe_node=body["dedupe_node"],
    )


def _json(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _sealed(key: bytes, body: bytes) -> bytes:
    return body + _CHECKSUM.pack(xxh3_64_intdigest(body, xxh3_64_intdigest(key)))


def _unsealed(key: bytes, value: bytes, file: str) -> bytes:
    body = value[: -_CHECKSUM.size]
    if value[len(body) :] != _CHECKSUM.pack(xxh3_64_intdigest(body, xxh3_64_intdigest(key))):
        raise corrupt(key, "fails its checksum", file)
    return body


def _check_format(key: bytes, version: int, file: str, *, newest: int = FORMAT) -> None:
    if version > newest:
        raise NewerFormat(
            f"{file}: {_name(key)} has format {version}, this version reads {newest}", file=file, offset=0
        )
    if version < FORMAT:
        raise corrupt(key, f"has format {version}", file)


def corrupt(key: bytes, what: str, file: str) -> DataCorrupt:
    """Return the error about the value of `key`."""
    return DataCorrupt(f"{file}: {_name(key)} {what}", file=file, offset=0)


def _name(key: bytes) -> str:
    if key == HEAD_KEY:
        return "the catalog's head"
    if len(key) == TOPIC_KEY.size and key.startswith(TOPIC_PREFIX):
        return f"the catalog's topic {TOPIC_KEY.unpack(key)[1]}"
    return f"the catalog's key {key.hex()}"
