"""The bytes of a local fold's file: a header, then frames, each a group of changes and the place behind them.

    file   = header frame*
    header = "EDYLFOLD"   u8 version (1)   3 zero bytes   u32 scope_len   u64 base_end   i64 snapshot_ms
             scope   u64 xxh3_64 of all before it
    scope  = u16 topic_len   topic   u16 prefix count   (u16 prefix_len   prefix)*
    frame  = "\\xf0EDf"   u64 xxh3_64 of the rest of the frame, seeded with the frame's offset   u32 body_len   body
    body   = u8 kind (1 changes, 2 deleted)   3 zero bytes   u32 item_count   u64 epoch   u64 seq   i64 as_of_ms
             u64 synced_end   item*
    item   = u16 key_len   u32 entry_len (0xFFFFFFFF = the key is no longer live)   key   entry

Little-endian. An entry's bytes are those of `eddyline.core.records.fold_entry`. A frame is taken whole or not at all.
It says the place (epoch and seq) behind it, when the fold was last known to be level (`as_of_ms`, 0 = never), and up to
where the file was known to be on the disk when it was written (`synced_end`). Below `base_end`, which was on the disk
before the file got its name, and below any valid frame's `synced_end`, wrong bytes are corruption; behind them, a torn
tail. A frame of kind deleted says that the topic is gone: no key is live behind it. Threads: pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from eddyline.core.errors import DataCorrupt, NewerFormat

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAGIC: Final = b"EDYLFOLD"
VERSION: Final = 1
FRAME_MARK: Final = b"\xf0EDf"
CHANGES: Final = 1
DELETED: Final = 2

FILE_HEAD: Final = Struct("<8sB3xIQq")
FRAME_HEAD: Final = Struct("<4sQI")
BODY_HEAD: Final = Struct("<B3xIQQqQ")
ITEM: Final = Struct("<HI")
_SHORT: Final = Struct("<H")
_CHECKSUM: Final = Struct("<Q")
NO_ENTRY: Final = 0xFFFF_FFFF
_CHECKED_AT: Final = 12
"""Offset at which the checksummed rest of a frame begins."""

SCOPE_BYTES_MAX: Final = 2 << 20
"""A thousand prefixes of 1 KiB, and the topic's name."""
BODY_BYTES_MAX: Final = 256 << 20
"""A message of 64 MiB, of which the smallest records take three times their bytes here."""

Change = tuple[bytes, bytes | None]
"""A key and its entry; None = it is no longer live."""


class FoldPosition(NamedTuple):
    """The position of a local fold: epoch and seq of the topic; when it was last caught up, 0 = never."""

    epoch: int
    seq: int
    as_of_ms: int = 0
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class FoldScope:
    """The scope of a local fold: a topic, and the keys with one of these prefixes (none given = all)."""

    topic: str
    key_prefixes: tuple[bytes, ...] = ()


class FileHead(NamedTuple):
    """The header: `size` bytes long; the base ends at `base_end`; the snapshot behind it was taken at `snapshot_ms`."""

    scope: FoldScope
    size: int
    base_end: int
    snapshot_ms: int


def encode_file_head(scope: FoldScope, *, base_end: int, snapshot_ms: int) -> bytes:
    """The header's bytes; their length does not depend on the numbers."""
    body = _encode_scope(scope)
    head = FILE_HEAD.pack(MAGIC, VERSION, len(body), base_end, snapshot_ms) + body
    return head + _CHECKSUM.pack(xxh3_64_intdigest(head))


def decode_file_head(data: bytes, path: Path) -> FileHead:
    """The header at the start of `data`.

    Raises:
        DataCorrupt: it is none, or damaged. NewerFormat: a later version's.
    """
    if len(data) < FILE_HEAD.size or not data.startswith(MAGIC):
        raise corrupt(path, 0, "not a local fold's file")
    _magic, version, scope_len, base_end, snapshot_ms = FILE_HEAD.unpack_from(data)
    if version > VERSION:
        raise NewerFormat(f"{path} has format {version}; this version reads {VERSION}", file=str(path), offset=8)
    end = FILE_HEAD.size + scope_len
    if version != VERSION or scope_len > SCOPE_BYTES_MAX or len(data) < end + _CHECKSUM.size:
        raise corrupt(path, 8, "the header is damaged")
    if xxh3_64_intdigest(data[:end]) != _CHECKSUM.unpack_from(data, end)[0]:
        raise corrupt(path, 0, "the header's checksum is wrong")
    return FileHead(_decode_scope(data[FILE_HEAD.size : end], path), end + _CHECKSUM.size, base_end, snapshot_ms)


def encode_frame(changes: Sequence[Change], place: FoldPosition, *, offset: int, synced_end: int) -> bytes:
    """One frame that will lie at `offset`. Of a deleted place it has no changes."""
    parts = [b""]
    pack, add = ITEM.pack, parts.append
    for key, entry in changes:
        if entry is None:
            add(pack(len(key), NO_ENTRY))
            add(key)
        else:
            add(pack(len(key), len(entry)))
            add(key)
            add(entry)
    assert not (place.deleted and changes)
    kind = DELETED if place.deleted else CHANGES
    parts[0] = BODY_HEAD.pack(kind, len(changes), place.epoch, place.seq, place.as_of_ms, synced_end)
    body = b"".join(parts)
    assert len(body) <= BODY_BYTES_MAX
    checked = len(body).to_bytes(4, "little") + body
    return FRAME_MARK + _CHECKSUM.pack(xxh3_64_intdigest(checked, offset)) + checked


def frame_end(data: bytes | memoryview, at: int, offset: int) -> int:
    """Return the end in `data` of the frame at index `at`, which lies at `offset` of the file; 0 = there is no valid
    one.

    Data that ends before the frame does has no valid one: `bytes_wanted` says how much it takes.
    """
    if len(data) - at < FRAME_HEAD.size:
        return 0
    mark, checksum, body_len = FRAME_HEAD.unpack_from(data, at)
    end: int = at + FRAME_HEAD.size + body_len
    if mark != FRAME_MARK or not BODY_HEAD.size <= body_len <= BODY_BYTES_MAX or len(data) < end:
        return 0
    view = memoryview(data)[at + _CHECKED_AT : end]
    return end if xxh3_64_intdigest(view, offset) == checksum else 0


def bytes_wanted(data: bytes) -> int:
    """Length of the frame that seems to be at the start of `data`; 0 = there is none."""
    if len(data) < FRAME_HEAD.size:
        return 0
    mark, _checksum, body_len = FRAME_HEAD.unpack_from(data)
    return FRAME_HEAD.size + int(body_len) if mark == FRAME_MARK and body_len <= BODY_BYTES_MAX else 0


class Body(NamedTuple):
    """The header of a valid frame; its items lie between `items_at` and `end` of the data."""

    place: FoldPosition
    synced_end: int
    item_count: int
    items_at: int
    end: int


def body_of(data: bytes, at: int, end: int) -> Body:
    """The body of the valid frame between two indexes of `data`."""
    kind, count, epoch, seq, as_of_ms, synced_end = BODY_HEAD.unpack_from(data, at + FRAME_HEAD.size)
    place = FoldPosition(epoch, seq, as_of_ms, kind == DELETED)
    return Body(place, synced_end, count, at + FRAME_HEAD.size + BODY_HEAD.size, end)


def apply_body(data: bytes, body: Body, entries: dict[bytes, bytes]) -> bool:
    """Apply a frame's items to `entries`. False = they do not fill the frame, which no writer of ours makes."""
    if body.place.deleted:
        entries.clear()
    at, end = body.items_at, body.end
    unpack, head = ITEM.unpack_from, ITEM.size
    try:
        for _ in range(body.item_count):
            key_len, entry_len = unpack(data, at)
            key_at = at + head
            at = key_at + key_len
            key = data[key_at:at]
            if entry_len == NO_ENTRY:
                entries.pop(key, None)
                continue
            entries[key] = data[at : at + entry_len]
            at += entry_len
            if at > end:
                return False
    except StructError:
        return False
    return at == end


def corrupt(path: Path, offset: int, cause: str) -> DataCorrupt:
    """The error of damaged bytes in a local fold's file."""
    return DataCorrupt(f"{path}, offset {offset}: {cause}", file=str(path), offset=offset)


def _encode_scope(scope: FoldScope) -> bytes:
    topic = scope.topic.encode()
    parts = [_SHORT.pack(len(topic)), topic, _SHORT.pack(len(scope.key_prefixes))]
    for prefix in scope.key_prefixes:
        parts += (_SHORT.pack(len(prefix)), prefix)
    return b"".join(parts)


def _decode_scope(data: bytes, path: Path) -> FoldScope:
    try:
        topic, at = _cut(data, 0)
        (count,) = _SHORT.unpack_from(data, at)
        at += _SHORT.size
        prefixes = []
        for _ in range(count):
            prefix, at = _cut(data, at)
            prefixes.append(prefix)
        return FoldScope(topic.decode(), tuple(prefixes))
    except (StructError, UnicodeDecodeError) as error:
        raise corrupt(path, FILE_HEAD.size, f"the header's scope is damaged: {error}") from error


def _cut(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _SHORT.unpack_from(data, at)
    end = at + _SHORT.size + length
    return data[at + _SHORT.size : end], end
