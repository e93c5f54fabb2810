"""The record and its words: op, gap, limits.

A `Record` is a row: made at the edge only, once a frame; what crosses boundaries is `eddyline.core.records.batch.Batch`.
Semantics: records, gaps and limits are those of the contract's `types.proto`.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final, NamedTuple

NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")

RECORD_OVERHEAD_BYTES: Final = 32
"""Bytes that a record counts beside its cells, by the semantics."""
DATA_META_BYTES_MAX: Final = 1 << 20
"""Data and meta of one record together. JetStream's default message limit; a source may bring more."""
SOURCE_DATA_META_BYTES_MAX: Final = 8 << 20
"""The same where a source brings the record: NATS's hard message limit is 64 MiB, its advice 8."""
KEY_BYTES_MAX: Final = 1024
TAG_BYTES_MAX: Final = 256
NODE_BYTES_MAX: Final = 128
META_BYTES_MAX: Final = 16 << 10
META_ENTRIES_MAX: Final = 64
VERSION_BYTES_MAX: Final = 10
MARKER_REASON: Final = "Nats-Marker-Reason"
"""Name of the entry of meta by which NATS says why it removed a key by itself: MaxAge (it expired), Purge or Remove (by its
API). It is on DELETE and PURGE records of sources alone; a client's own delete or purge has none."""
IDEMPOTENCY_KEY_BYTES_MAX: Final = 128
APPEND_RECORDS_MAX: Final = 10_000
POSITION_BYTES_MAX: Final = 256
MESSAGE_BYTES_MAX: Final = 64 << 20
MESSAGE_BYTES_DEFAULT: Final = 4 << 20
"""What gRPC takes in every language where nothing is said."""
EXPECTED_VERSIONS_MAX: Final = 10_000


class Op(IntEnum):
    """What a record does. The numbers are on disk and on the wire."""

    APPEND = 1
    PUT = 2
    DELETE = 3
    PURGE = 4
    GAP = 5


class _OpOfTopic(int):
    """The type of `OP_OF_TOPIC`, whose identity no other number has."""

    def __repr__(self) -> str:
        return "OP_OF_TOPIC"

    def __reduce__(self) -> str:
        return "OP_OF_TOPIC"


OP_OF_TOPIC: Final = _OpOfTopic(Op.APPEND)
"""The op of a record to whom none was given: APPEND, but that an append of a client leaves it to the store, which takes
APPEND on a LOG topic and PUT on a KV topic."""


class GapReason(IntEnum):
    """Why records are missing. The numbers are on disk and on the wire."""

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
    """Of a watch alone, never on disk."""


_OPS: Final[dict[int, Op]] = {op.value: op for op in Op}
_REASONS: Final[dict[int, GapReason]] = {reason.value: reason for reason in GapReason}


def op_of(number: int) -> int:
    """The op of this number; a number that this version does not know stays one."""
    return _OPS.get(number, number)


def reason_of(number: int) -> int:
    """The reason of this number; a number that this version does not know stays one."""
    return _REASONS.get(number, number)


class MetaEntry(NamedTuple):
    """One named value of a record's meta."""

    name: str
    value: bytes


class Record(NamedTuple):
    """One record as a row. `seq` and `ts_ms` are 0 until the store assigns them; None = absent, b"" = empty.

    `op` is a member of `Op`, or the number where it is unset (0) or of a later version. Not given, it is the topic's:
    APPEND, or PUT on a KV topic (`OP_OF_TOPIC`).
    `version` empty means: the seq in 8 bytes, big-endian (`effective_version`).
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

    `seq` is the one that a gap record itself takes, 0 where none does. `source_*` only with SOURCE_GAP and SUPERSEDED;
    `source_last` 0 beside a `source_first` = nobody knows how many were lost.
    `reason` is a member of `GapReason`, or the number of a later version's.
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
        """Seq a reader stands at after it: its record's, whatever range it tells; without a record the range's last."""
        return self.seq or self.last_seq


def has_gaps(ops: bytes | bytearray | memoryview | None) -> bool:
    """True = one of a batch's ops, a byte each, is GAP; None = all are APPEND."""
    # Bytes are searched at once; a view would make a number of each of them.
    return ops is not None and Op.GAP in bytes(ops)


def effective_version(version: bytes, seq: int) -> bytes:
    """The version readers see: the stored one, or the seq in 8 bytes where none was set."""
    return version or seq.to_bytes(8, "big")


def compare_versions(left: bytes, right: bytes) -> int:
    """Below, equal or above 0 as `left` is the smaller, equal or larger unsigned big-endian number."""
    left_number, right_number = int.from_bytes(left, "big"), int.from_bytes(right, "big")
    return (left_number > right_number) - (left_number < right_number)
