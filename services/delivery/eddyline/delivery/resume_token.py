"""Cursor and resume token: positions of a reader.

Owns the token's bytes, opaque to clients. Little-endian:

    token     u8 2 | entry a topic, in byte order of the topics' names | u64 checksum
    entry     u64 name | u64 signature | position
    position  u64 epoch | u64 seq | u8 state (0 = START, 1 = SNAPSHOT, 2 = LOG, 3 = KEYS) | with KEYS: u16 length, key

`name` is xxh3_64 of the topic's name, `signature` of its name, filters and options, and `checksum` of all bytes before
it, each with seed 0. The hashed signature is: u16 length, name, key prefixes, and, only if there is one of these, u16 0
(which is no name's length), tags, excluded nodes, u8 options. A list is u32 number, then its values sorted and without
repeats, each as u32 length, bytes. So a token fits every request with the same content, in any order.
Each topic is independent: a request may leave out topics of the token, for instance deleted ones, and have others,
which begin at their own start. At least one topic is in both, and none of those with other filters.
Version 1 is read too; it has no checksum, and fits the same topics only:

    token     u8 1 | u64 xxh3_64 of the topics' signatures in order | position a topic, in the same order

Failure: bytes that no `ResumeTokens` made, or that were changed since, are `ResumeTokenInvalid`; those of another watch
are `ResumeTokenMismatch`. A token is not authenticated: a forged one only moves the forger's own cursor.
Rejected: one fingerprint of all topics. A client that leaves out a deleted topic had to give up its token, and with it
its position in every topic that had no frame of its own.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Final, NamedTuple

import xxhash

from eddyline.core.errors import ResumeTokenInvalid, ResumeTokenMismatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TOPICS_MAX: Final = 1_000
TOKEN_VERSION: Final = 2
AFTER_KEY_BYTES_MAX: Final = 1 << 10
"""The limit of keys. Sources may write longer ones: a snapshot interrupted after such a key starts over. 1 000 topics
that are all within a snapshot make a token of 1 MB; 33 KB if none is.
"""

_FIRST_VERSION: Final = 1
_FIRST_HEADER: Final = struct.Struct("<BQ")
_TOPIC: Final = struct.Struct("<QQ")
_POSITION: Final = struct.Struct("<QQB")
_U64: Final = struct.Struct("<Q")
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")


class Cursor(NamedTuple):
    """A position in one topic: everything up to `seq` was received. Epoch 0 = not checked."""

    topic: str
    epoch: int
    seq: int


class ResumeState(IntEnum):
    """Phase of a topic within a watch. The numbers are in tokens."""

    START = 0
    """Not begun: the request's own start applies. Epoch and seq are 0."""
    SNAPSHOT = 1
    """Within a snapshot, which starts over. The seq is the snapshot's point, 0 if it was unknown."""
    LOG = 2
    """Reading the log after seq."""
    KEYS = 3
    """Within a snapshot that has delivered the keys up to `after_key`, as they are at seq."""


class Resume(NamedTuple):
    """Position from which one topic of a watch continues. `after_key` is set with KEYS only, and not empty there."""

    cursor: Cursor
    state: ResumeState
    after_key: bytes = b""


class WatchOption(IntFlag):
    """Options of a watch for a topic, besides its filters. The numbers are in fingerprints."""

    IGNORE_DELETES = 1
    METADATA_ONLY = 2
    UPDATES_ONLY = 4
    HEAL = 8


class TopicSignature(NamedTuple):
    """A topic of a watch with the filters and options that a token is bound to."""

    topic: str
    key_prefixes: tuple[bytes, ...] = ()
    tags: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    options: WatchOption = WatchOption(0)


class ResumeTokens:
    """Writes and reads the tokens of one watch. The hashes of its topics are computed once."""

    def __init__(self, watched: Iterable[TopicSignature]) -> None:
        self._canonical = sorted(watched, key=lambda one: one.topic.encode())
        assert 1 <= len(self._canonical) <= TOPICS_MAX
        self._topics = {
            one.topic: _TopicHashes(_hash(one.topic.encode()), _hash(_signature_bytes(one))) for one in self._canonical
        }
        assert len(self._topics) == len(self._canonical)
        self._heads = [(name, _TOPIC.pack(*hashed)) for name, hashed in self._topics.items()]

    def encode(self, positions: Mapping[str, Resume]) -> bytes:
        """Encode the token of `positions`, which has every topic of the watch by name."""
        token = bytearray((TOKEN_VERSION,))
        for name, head in self._heads:
            cursor, state, after_key = positions[name]
            assert _fits(cursor.epoch, cursor.seq, state)
            token += head + _POSITION.pack(cursor.epoch, cursor.seq, state)
            if state is ResumeState.KEYS:
                assert 0 < len(after_key) <= AFTER_KEY_BYTES_MAX
                token += _U16.pack(len(after_key)) + after_key
        return bytes(token + _U64.pack(_hash(token)))

    def decode(self, token: bytes) -> dict[str, Resume]:
        """Decode a client's token: the positions of the topics that are both in the watch and in the token.

        Raises:
            ResumeTokenInvalid: not made by delivery, or damaged.
            ResumeTokenMismatch: of other filters, or of other topics only.
        """
        version = token[0] if token else 0
        if version == _FIRST_VERSION:
            return self._decode_first(token)
        if token and version != TOKEN_VERSION:
            raise _invalid(f"its version is {version}; this version reads {TOKEN_VERSION}", version=version)
        body, checksum = token[: -_U64.size], token[-_U64.size :]
        if len(token) <= _U64.size or checksum != _U64.pack(_hash(body)):
            raise _invalid("its checksum is wrong")
        entries = _entries(body)
        resumes: dict[str, Resume] = {}
        for name, (name_hash, signature_hash) in self._topics.items():
            entry = entries.get(name_hash)
            if entry is None:
                continue
            if entry.signature != signature_hash:
                raise _mismatch(f"is for other filters or options of topic {name}", topic=name)
            resumes[name] = entry.position.of(name)
        if not resumes:
            raise _mismatch("is for none of these topics")
        return resumes

    def _decode_first(self, token: bytes) -> dict[str, Resume]:
        if len(token) < _FIRST_HEADER.size:
            raise _invalid("its length is wrong")
        _, fingerprint = _FIRST_HEADER.unpack_from(token, 0)
        positions: list[_TopicPosition] = []
        offset = _FIRST_HEADER.size
        while offset < len(token):
            position, offset = _decode_position(token, offset)
            if len(positions) == TOPICS_MAX:
                raise _invalid("an entry is invalid")
            positions.append(position)
        if not positions:
            raise _invalid("its length is wrong")
        if fingerprint != _hash(b"".join(map(_signature_bytes, self._canonical))):
            raise _mismatch("is for other topics or filters")
        if len(positions) != len(self._canonical):
            raise _invalid("its number of topics is wrong")
        return {one.topic: position.of(one.topic) for one, position in zip(self._canonical, positions, strict=True)}


class _TopicHashes(NamedTuple):
    """Hashes that identify a topic's entry in a token."""

    name: int
    signature: int


class _TopicPosition(NamedTuple):
    epoch: int
    seq: int
    state: int
    after_key: bytes

    def of(self, topic: str) -> Resume:
        return Resume(Cursor(topic, self.epoch, self.seq), ResumeState(self.state), self.after_key)


class _TokenEntry(NamedTuple):
    signature: int
    position: _TopicPosition


def _entries(body: bytes) -> dict[int, _TokenEntry]:
    """Return the entries of a token without its checksum, by the hashes of their names. Raises ResumeTokenInvalid."""
    entries: dict[int, _TokenEntry] = {}
    offset = 1
    while offset < len(body):
        if len(body) - offset < _TOPIC.size:
            raise _invalid("its length is wrong")
        name, signature = _TOPIC.unpack_from(body, offset)
        position, offset = _decode_position(body, offset + _TOPIC.size)
        if name in entries or len(entries) == TOPICS_MAX:
            raise _invalid("an entry is invalid")
        entries[name] = _TokenEntry(signature, position)
    if not entries:
        raise _invalid("its length is wrong")
    return entries


class _DecodedPosition(NamedTuple):
    position: _TopicPosition
    end: int


def _decode_position(token: bytes, offset: int) -> _DecodedPosition:
    """Decode the position at `offset`; return it and the offset after it. Raises ResumeTokenInvalid."""
    if len(token) - offset < _POSITION.size:
        raise _invalid("its length is wrong")
    epoch, seq, state = _POSITION.unpack_from(token, offset)
    offset += _POSITION.size
    after_key = b""
    if state == ResumeState.KEYS:
        start = offset + _U16.size
        size = int.from_bytes(token[offset:start], "little")
        after_key, offset = token[start : start + size], start + size
        if not 0 < size <= AFTER_KEY_BYTES_MAX or len(after_key) < size:
            raise _invalid("a key in it is invalid")
    if not _fits(epoch, seq, state):
        raise _invalid("an entry is invalid")
    return _DecodedPosition(_TopicPosition(epoch, seq, state, after_key), offset)


def _hash(data: bytes | bytearray) -> int:
    return int(xxhash.xxh3_64_intdigest(bytes(data)))


def _signature_bytes(watched: TopicSignature) -> bytes:
    topic, key_prefixes, tags, exclude_nodes, options = watched
    name = topic.encode()
    encoded = _U16.pack(len(name)) + name + _packed(key_prefixes)
    if tags or exclude_nodes or options:
        encoded += _U16.pack(0) + _packed(tag.encode() for tag in tags)
        encoded += _packed(node.encode() for node in exclude_nodes) + bytes((options,))
    return encoded


def _packed(values: Iterable[bytes]) -> bytes:
    distinct = sorted(set(values))
    return _U32.pack(len(distinct)) + b"".join(_U32.pack(len(value)) + value for value in distinct)


def _fits(epoch: int, seq: int, state: int) -> bool:
    if state == ResumeState.START:
        return epoch == 0 and seq == 0
    return state in (ResumeState.SNAPSHOT, ResumeState.LOG, ResumeState.KEYS) and epoch != 0


def _invalid(why: str, **metadata: int) -> ResumeTokenInvalid:
    return ResumeTokenInvalid(f"not a resume token of Eddyline: {why}", field="resume_token", **metadata)


def _mismatch(why: str, **metadata: str) -> ResumeTokenMismatch:
    message = f"the resume token {why}; repeat the request that it belongs to, or leave it out"
    return ResumeTokenMismatch(message, field="resume_token", **metadata)
