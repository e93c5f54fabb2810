"""Record, gap, op and their limits.

A `Record` is a row, made at the edge only, once a frame; boundaries are crossed by `eddyline.core.records.batch.Batch`.
Records, gaps and limits are those of the contract's `types.proto`.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final, NamedTuple

NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")

RECORD_OVERHEAD_BYTES: Final = 32
"""Bytes counted for each record in addition to its cells, by the contract."""
DATA_META_BYTES_MAX: Final = 1 << 20
"""Data and meta of one record together. JetStream's default message limit; a source may write more."""
SOURCE_DATA_META_BYTES_MAX: Final = 8 << 20
"""The same limit for records of a source: NATS's hard message limit is 64 MiB, its recommended limit 8."""
KEY_BYTES_MAX: Final = 1024
TAG_BYTES_MAX: Final = 256
NODE_BYTES_MAX: Final = 128
META_BYTES_MAX: Final = 16 << 10
META_ENTRIES_MAX: Final = 64
VERSION_BYTES_MAX: Final = 10
MARKER_REASON: Final = "Nats-Marker-Reason"
"""Name of the meta entry with NATS's reason for removing a key: MaxAge (it expired), Purge or Remove (through its API).

Only DELETE and PURGE records of sources have it; a client's own delete or purge has none.
"""
IDEMPOTENCY_KEY_BYTES_MAX: Final = 128
APPEND_RECORDS_MAX: Final = 10_000
POSITION_BYTES_MAX: Final = 256
MESSAGE_BYTES_MAX: Final = 64 << 20
MESSAGE_BYTES_DEFAULT: Final = 4 << 20
"""gRPC's default limit of a received message, in every language."""
EXPECTED_VERSIONS_MAX: Final = 10_000


class Op(IntEnum):
    """Operation of a record. The numbers are on disk and on the wire."""

    APPEND = 1
    PUT = 2
    DELETE = 3
    PURGE = 4
    GAP = 5


class _OpOfTopic(int):
    """Type of `OP_OF_TOPIC`, which makes it distinguishable from the number 1."""

    def __repr__(self) -> str:
        return "OP_OF_TOPIC"

    def __reduce__(self) -> str:
        return "OP_OF_TOPIC"


OP_OF_TOPIC: Final = _OpOfTopic(Op.APPEND)
"""Default op of a record: APPEND, except that in a client's append the store chooses APPEND on a LOG topic and PUT on a
KV topic.
"""


class GapReason(IntEnum):
    """Reason for missing records. The numbers are on disk and on the wire."""

    RECREATED = 1
    SOURCE_GAP = 2
    SUPERSEDED = 3
    UNSYNCED = 4
    CAP = 5
    TTL = 6
    EPHEMERAL = 7
    COMPACTED = 8
    SOURCE_TRIM = 9
    OVERSIZE = 10
    """In watches only, never on disk."""


_OPS: Final[dict[int, Op]] = {op.value: op for op in Op}
_REASONS: Final[dict[int, GapReason]] = {reason.value: reason for reason in GapReason}


def op_of(number: int) -> int:
    """Return the op of this number; a number that this version does not know stays a number."""
    return _OPS.get(number, number)


def gap_reason_of(number: int) -> int:
    """Return the reason of this number; a number that this version does not know stays a number."""
    return _REASONS.get(number, number)


class MetaEntry(NamedTuple):
    """One named value of a record's meta."""

    name: str
    value: bytes


class Record(NamedTuple):
    """One record as a row. `seq` and `ts_ms` are 0 until the store assigns them; None = absent, b"" = empty.

    `op` is a member of `Op`, or the number if it is unset (0) or from a later version. By default it is the topic's:
    APPEND, or PUT on a KV topic (`OP_OF_TOPIC`).
    An empty `version` means the seq in 8 bytes, big-endian (`effective_version`).
    """

    seq: int = 0
    ts_ms: int = 0
    source_ts_ns: int = 0
    op: int = OP_OF_TOPIC
    key: bytes | None = None
    data: bytes | None = None
    tag: str | None = None
    node: str | None = None
    meta: tuple[MetaEntry, ...] = ()
    version: bytes = b""


class Gap(NamedTuple):
    """A lost range: `first_seq` to `last_seq`, both inclusive; 0 to 0 with RECREATED, which has no range.

    `seq` is that of the gap record, 0 if there is none. `source_*` only with SOURCE_GAP and SUPERSEDED; `source_last` 0
    with a `source_first` = the number of lost revisions is unknown.
    `reason` is a member of `GapReason`, or the number of one of a later version.
    """

    first_seq: int
    last_seq: int
    reason: int
    seq: int = 0
    old_epoch: int = 0
    new_epoch: int = 0
    source_identity: bytes = b""
    source_first: int = 0
    source_last: int = 0

    @property
    def own_seq(self) -> int:
        """Cursor of a reader after this gap: the seq of the gap record, else the last seq of the range."""
        return self.seq or self.last_seq


def effective_version(version: bytes, seq: int) -> bytes:
    """Return the version that readers get: the stored one, or the seq in 8 bytes if none was set."""
    return version or seq.to_bytes(8, "big")


def compare_versions(left: bytes, right: bytes) -> int:
    """Return a number below, equal to or above 0 as `left` is the smaller, equal or larger unsigned big-endian number."""
    left_number, right_number = int.from_bytes(left, "big"), int.from_bytes(right, "big")
    return (left_number > right_number) - (left_number < right_number)
