"""Record deletes and erasure: results, and the checks of a request.

This is the contract; `eddyline.store.log.deletion` applies a delete to a log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eddyline.core.errors import InvalidArgument
from eddyline.core.model.topic import Kind
from eddyline.core.records.match import MatchField
from eddyline.core.records.record import KEY_BYTES_MAX, TAG_BYTES_MAX

if TYPE_CHECKING:
    from eddyline.core.records.match import Match


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """Result of a delete: live records that this call removed, and the topic's state; `head_seq` is its upper bound."""

    deleted_count: int
    earliest_seq: int
    head_seq: int
    epoch: int


@dataclass(frozen=True, slots=True)
class EraseProgress:
    """Progress of an erasure. `total_bytes` may grow; `erased` = no record deleted before the erasure is left on disk."""

    done_bytes: int
    total_bytes: int
    erased: bool = False


def check_delete(before_seq: int, match: Match | None, kind: Kind | None = None) -> None:
    """Refuse a delete without a condition, or with one that is not allowed on a topic of this kind (None = any kind).

    Raises:
        InvalidArgument.
    """
    if match is None:
        if before_seq == 0:
            message = "a delete needs before_seq, a match, or both; to delete all records, delete the topic"
            raise InvalidArgument(message, field="before_seq")
        return
    limit = KEY_BYTES_MAX if match.field is MatchField.KEY else TAG_BYTES_MAX
    if len(match.value) > limit:
        raise InvalidArgument(
            f"a match's {match.field.name.lower()} has at most {limit} bytes, not {len(match.value)}",
            field="match.value",
            valueBytes=len(match.value),
            valueBytesMax=limit,
        )
    if match.field is MatchField.TAG and not _is_text(match.value):
        # A prefix that ends within a character would delete tags of other characters too.
        raise InvalidArgument("a match's tag must be UTF-8", field="match.value")
    if match.field is MatchField.TAG and kind is Kind.KV:
        message = "a KV topic's records are deleted by key, not by tag: a key's older value would return"
        raise InvalidArgument(message, field="match.field")


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
