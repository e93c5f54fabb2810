"""Cursor and resume token: where a reader stands.

Owns the token's bytes, opaque to clients. Little-endian:

    token   u8 1 | u64 fingerprint | entry a topic, in byte order of the topics' names
    entry   u64 epoch | u64 seq | u8 state (0 = START, 1 = SNAPSHOT, 2 = LOG)

The fingerprint is xxh3_64 (seed 0) over the topics in that order, each as: u16 length, name, u32 number of prefixes,
and its key prefixes sorted and without repeats, each as u32 length, bytes. So a token fits every request that asks for
the same, in whatever order it names it.
Failure: bytes that no `ResumeTokens` made are `ResumeTokenInvalid`; those of another watch are `ResumeTokenMismatch`.
It is not authenticated: a forged token only moves the forger's own cursor.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import xxhash

from eddyline.core.errors import ResumeTokenInvalid, ResumeTokenMismatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TOPICS_MAX: Final = 1_000
TOKEN_VERSION: Final = 1

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


class Resume(NamedTuple):
    """Where one topic of a watch goes on."""

    cursor: Cursor
    state: ResumeState


class WatchedTopic(NamedTuple):
    """A topic of a watch with its filter, as far as a token is bound to it."""

    topic: str
    key_prefixes: tuple[bytes, ...] = ()


class ResumeTokens:
    """Writes and reads the tokens of one watch. The fingerprint is computed once."""

    def __init__(self, watched: Iterable[WatchedTopic]) -> None:
        canonical = sorted(watched, key=lambda one: one.topic.encode())
        self._names = [one.topic for one in canonical]
        assert 1 <= len(self._names) <= TOPICS_MAX
        assert len(set(self._names)) == len(self._names)
        self._fingerprint = _fingerprint(canonical)
        self._bytes = _HEADER.size + _ENTRY.size * len(self._names)

    def encode(self, positions: Mapping[str, Resume]) -> bytes:
        """Write the token of `positions`, which has every topic of the watch by name."""
        token = bytearray(self._bytes)
        _HEADER.pack_into(token, 0, TOKEN_VERSION, self._fingerprint)
        offset = _HEADER.size
        for name in self._names:
            cursor, state = positions[name]
            assert _fits(cursor.epoch, cursor.seq, state)
            _ENTRY.pack_into(token, offset, cursor.epoch, cursor.seq, state)
            offset += _ENTRY.size
        return bytes(token)

    def decode(self, token: bytes) -> dict[str, Resume]:
        """Read a token that a client sent: where each topic of the watch goes on.

        Raises:
            ResumeTokenInvalid: not made by us.
            ResumeTokenMismatch: of other topics or filters.
        """
        if len(token) <= _HEADER.size or (len(token) - _HEADER.size) % _ENTRY.size:
            raise _invalid("its length is wrong")
        version, fingerprint = _HEADER.unpack_from(token, 0)
        if version != TOKEN_VERSION:
            raise _invalid(f"its version is {version}, known is {TOKEN_VERSION}", version=version)
        entries = list(_ENTRY.iter_unpack(memoryview(token)[_HEADER.size :]))
        if len(entries) > TOPICS_MAX or not all(_fits(*entry) for entry in entries):
            raise _invalid("an entry is none of ours")
        if fingerprint != self._fingerprint:
            raise ResumeTokenMismatch(
                "the resume token is of other topics or filters; ask for the same ones, or leave it out",
                field="resume_token",
            )
        if len(entries) != len(self._names):
            raise _invalid("its number of topics is wrong")
        return {
            name: Resume(Cursor(name, epoch, seq), ResumeState(state))
            for name, (epoch, seq, state) in zip(self._names, entries, strict=True)
        }


def _fingerprint(canonical: list[WatchedTopic]) -> int:
    state = xxhash.xxh3_64()
    for topic, key_prefixes in canonical:
        name = topic.encode()
        prefixes = sorted(set(key_prefixes))
        state.update(_U16.pack(len(name)) + name + _U32.pack(len(prefixes)))
        for prefix in prefixes:
            state.update(_U32.pack(len(prefix)) + prefix)
    return int(state.intdigest())


def _fits(epoch: int, seq: int, state: int) -> bool:
    if state == ResumeState.START:
        return epoch == 0 and seq == 0
    return state in (ResumeState.SNAPSHOT, ResumeState.LOG) and epoch != 0


def _invalid(why: str, **metadata: int) -> ResumeTokenInvalid:
    return ResumeTokenInvalid(f"not a resume token of Eddyline: {why}", field="resume_token", **metadata)
