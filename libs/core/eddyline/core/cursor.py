"""Cursor and resume token: where a reader stands.

Owns the token's bytes, opaque to clients. Little-endian:

    token   u8 1 | u64 fingerprint | entry a topic, in byte order of the topics' names
    entry   u64 epoch | u64 seq | u8 state (0 = START, 1 = SNAPSHOT, 2 = LOG, 3 = KEYS) | with KEYS: u16 length, key

The fingerprint is xxh3_64 (seed 0) over the topics in that order, each as: u16 length, name, its key prefixes, and, only
where there is one of these, u16 0 (which is no name's length), its tags, its excluded nodes, u8 options. A list is u32
number, then its values sorted and without repeats, each as u32 length, bytes. So a token fits every request that asks for
the same, in whatever order it names it.
Failure: bytes that no `ResumeTokens` made are `ResumeTokenInvalid`; those of another watch are `ResumeTokenMismatch`.
It is not authenticated: a forged token only moves the forger's own cursor.
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
TOKEN_VERSION: Final = 1
AFTER_KEY_BYTES_MAX: Final = 1 << 10
"""A key's own bound. Sources may bring longer ones: a snapshot that breaks off behind such a key begins anew. 1 000 topics
that are all within a snapshot make a token of 1 MB."""

_HEADER: Final = struct.Struct("<BQ")
_ENTRY: Final = struct.Struct("<QQB")
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")


class Cursor(NamedTuple):
    """A position in one topic: everything up to `seq` was seen. Epoch 0 = not checked."""

    topic: str
    epoch: int
    seq: int


class ResumeState(IntEnum):
    """What a topic of a watch was doing. The numbers are in tokens."""

    START = 0
    """Not begun: the request's own start holds. Epoch and seq are 0."""
    SNAPSHOT = 1
    """Within a snapshot, which begins anew. The seq is the snapshot's point, 0 where it was not known."""
    LOG = 2
    """Reading the log after seq."""
    KEYS = 3
    """Within a snapshot, which has brought the keys up to `after_key`, as they are at seq."""


class Resume(NamedTuple):
    """Where one topic of a watch goes on. `after_key` is of KEYS alone, and not empty there."""

    cursor: Cursor
    state: ResumeState
    after_key: bytes = b""


class WatchOption(IntFlag):
    """What a watch wants of a topic beside its filters. The numbers are in fingerprints."""

    IGNORE_DELETES = 1
    METADATA_ONLY = 2
    UPDATES_ONLY = 4
    HEAL = 8


class WatchedTopic(NamedTuple):
    """A topic of a watch with its filters and options, as far as a token is bound to them."""

    topic: str
    key_prefixes: tuple[bytes, ...] = ()
    tags: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    options: WatchOption = WatchOption(0)


class ResumeTokens:
    """Writes and reads the tokens of one watch. The fingerprint is computed once."""

    def __init__(self, watched: Iterable[WatchedTopic]) -> None:
        canonical = sorted(watched, key=lambda one: one.topic.encode())
        self._names = [one.topic for one in canonical]
        assert 1 <= len(self._names) <= TOPICS_MAX
        assert len(set(self._names)) == len(self._names)
        self._fingerprint = _fingerprint(canonical)

    def encode(self, positions: Mapping[str, Resume]) -> bytes:
        """Write the token of `positions`, which has every topic of the watch by name."""
        token = bytearray(_HEADER.pack(TOKEN_VERSION, self._fingerprint))
        for name in self._names:
            cursor, state, after_key = positions[name]
            assert _fits(cursor.epoch, cursor.seq, state)
            token += _ENTRY.pack(cursor.epoch, cursor.seq, state)
            if state is ResumeState.KEYS:
                assert 0 < len(after_key) <= AFTER_KEY_BYTES_MAX
                token += _U16.pack(len(after_key)) + after_key
        return bytes(token)

    def decode(self, token: bytes) -> dict[str, Resume]:
        """Read a token that a client sent: where each topic of the watch goes on.

        Raises:
            ResumeTokenInvalid: not made by us.
            ResumeTokenMismatch: of other topics or filters.
        """
        if len(token) < _HEADER.size:
            raise _invalid("its length is wrong")
        version, fingerprint = _HEADER.unpack_from(token, 0)
        if version != TOKEN_VERSION:
            raise _invalid(f"its version is {version}, known is {TOKEN_VERSION}", version=version)
        entries = _entries(token)
        if fingerprint != self._fingerprint:
            raise ResumeTokenMismatch(
                "the resume token is of other topics or filters; ask for the same ones, or leave it out",
                field="resume_token",
            )
        if len(entries) != len(self._names):
            raise _invalid("its number of topics is wrong")
        return {
            name: Resume(Cursor(name, entry.epoch, entry.seq), ResumeState(entry.state), entry.after_key)
            for name, entry in zip(self._names, entries, strict=True)
        }


class _Entry(NamedTuple):
    epoch: int
    seq: int
    state: int
    after_key: bytes


def _entries(token: bytes) -> list[_Entry]:
    """The entries of a token. Raises ResumeTokenInvalid."""
    entries: list[_Entry] = []
    offset = _HEADER.size
    while offset < len(token):
        if len(token) - offset < _ENTRY.size:
            raise _invalid("its length is wrong")
        epoch, seq, state = _ENTRY.unpack_from(token, offset)
        offset += _ENTRY.size
        after_key = b""
        if state == ResumeState.KEYS:
            start = offset + _U16.size
            size = int.from_bytes(token[offset:start], "little")
            after_key, offset = token[start : start + size], start + size
            if not 0 < size <= AFTER_KEY_BYTES_MAX or len(after_key) < size:
                raise _invalid("a key in it is none of ours")
        if len(entries) == TOPICS_MAX or not _fits(epoch, seq, state):
            raise _invalid("an entry is none of ours")
        entries.append(_Entry(epoch, seq, state, after_key))
    if not entries:
        raise _invalid("its length is wrong")
    return entries


def _fingerprint(canonical: list[WatchedTopic]) -> int:
    state = xxhash.xxh3_64()
    for topic, key_prefixes, tags, exclude_nodes, options in canonical:
        name = topic.encode()
        state.update(_U16.pack(len(name)) + name + _packed(key_prefixes))
        if tags or exclude_nodes or options:
            state.update(_U16.pack(0) + _packed(tag.encode() for tag in tags))
            state.update(_packed(node.encode() for node in exclude_nodes) + bytes((options,)))
    return int(state.intdigest())


def _packed(values: Iterable[bytes]) -> bytes:
    distinct = sorted(set(values))
    return _U32.pack(len(distinct)) + b"".join(_U32.pack(len(value)) + value for value in distinct)


def _fits(epoch: int, seq: int, state: int) -> bool:
    if state == ResumeState.START:
        return epoch == 0 and seq == 0
    return state in (ResumeState.SNAPSHOT, ResumeState.LOG, ResumeState.KEYS) and epoch != 0


def _invalid(why: str, **metadata: int) -> ResumeTokenInvalid:
    return ResumeTokenInvalid(f"not a resume token of Eddyline: {why}", field="resume_token", **metadata)
