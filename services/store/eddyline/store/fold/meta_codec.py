"""Bytes of a fold's `meta` family: each topic's cursor, its writers' positions, and the owning store.

    key                                         value
    "store"                                     store id (UTF-8)
    "synced"                                    u64 number of the last checkpoint that the fold was synced for
    topic id u64 big-endian                     u64 applied seq, u64 base seq
    topic id u64 big-endian, writer id (UTF-8)  u64 fence, position (the rest)

Values little-endian. A topic's key is the only one of 8 bytes, a writer's are longer and the store's two are shorter; as
topic ids are counted up from 1, no topic's range reaches the store's keys.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from eddyline.core.errors import DataCorrupt
from eddyline.store.fold.fold import WriterState

STORE_KEY: Final = b"store"
CHECKPOINT_KEY: Final = b"synced"
TOPIC: Final = Struct(">Q")
TOPIC_BYTES: Final = TOPIC.size
_CURSOR: Final = Struct("<QQ")
_FENCE: Final = Struct("<Q")
_CHECKPOINT: Final = Struct("<Q")
assert max(len(STORE_KEY), len(CHECKPOINT_KEY)) < TOPIC_BYTES


class FoldCursor(NamedTuple):
    """Progress of a topic: the last seq applied, and the seq of its base, on top of which the log was applied."""

    applied_seq: int
    base_seq: int


encode_cursor: Final = _CURSOR.pack
"""Encode the value of a topic's key from its applied and its base seq."""


encode_checkpoint: Final = _CHECKPOINT.pack
"""Encode the value of the checkpoint's key."""


def decode_checkpoint(value: bytes) -> int:
    """Decode a checkpoint number. Raises DataCorrupt for a wrong size."""
    if len(value) != _CHECKPOINT.size:
        raise _corrupt(f"the checkpoint has {len(value)} bytes, not {_CHECKPOINT.size}")
    number: int = _CHECKPOINT.unpack(value)[0]
    return number


def decode_cursor(value: bytes) -> FoldCursor:
    """Decode a cursor. Raises DataCorrupt for a wrong size."""
    if len(value) != _CURSOR.size:
        raise _corrupt(f"a topic's value has {len(value)} bytes, not {_CURSOR.size}")
    return FoldCursor(*_CURSOR.unpack(value))


def encode_writer(state: WriterState) -> bytes:
    """Encode the value of a writer's key."""
    return _FENCE.pack(state.fence) + state.position


def decode_writer(value: bytes) -> WriterState:
    """Decode a writer's value. Raises DataCorrupt if it is too short."""
    if len(value) < _FENCE.size:
        raise _corrupt(f"a writer's value has {len(value)} bytes, not {_FENCE.size} and more")
    return WriterState(_FENCE.unpack_from(value)[0], value[_FENCE.size :])


def writer_id(key: bytes) -> str:
    """Return the writer's id from its key. Raises DataCorrupt if it is not UTF-8."""
    return _text(key[TOPIC_BYTES:], "a writer's id")


def decode_store_id(value: bytes) -> str:
    """Decode the store's id. Raises DataCorrupt if it is not UTF-8."""
    return _text(value, "the store's id")


def _text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise _corrupt(f"{what} is not UTF-8: {value.hex()}") from error


def _corrupt(cause: str) -> DataCorrupt:
    return DataCorrupt(f"fold: {cause}", file="fold", offset=0)
