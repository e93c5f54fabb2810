"""Record deletes: which rows a delete removes, and the bodies of its frame and of a floor's move.

A delete without a match removes a prefix: its floor. One with a match removes single rows: its frame has their seqs, so
replay reads no row, and the match too, by which the fold of a KV topic erases its entries.
I1: a row is counted once: rows removed by floors or earlier deletes are not counted again. The seqs of a KV topic's frame
may be more than the counted rows: rows below the floors, and entries of its base, from which a lost fold would be rebuilt.
I2: gap records are no records: a match leaves them; those in a removed prefix go with it.

    Delete body        = before_seq (0 = none), bound_seq, bitmap, record_count, record_bytes,
                         [match_field "KEY" | "TAG", match_kind "EQ" | "PREFIX", match_value]    bitmap, value: base64
    EvictWatermark body = cap_floor, ttl_floor (absolute), record_bytes (of the records that this move took)

`visible` filters a batch to the rows that readers get: above the floors, and not deleted.
Threading: pure functions.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eddyline.core.records.match import Match, MatchField, MatchKind, matched
from eddyline.core.records.record import Op
from eddyline.core.records.size import counted_bytes
from eddyline.store.log.seq_set import BadSeqSet, SeqSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from eddyline.core.records.batch import Batch
    from eddyline.store.log.floors import Floors
    from eddyline.store.log.seq_set import SeqSet


class BadBody(Exception):
    """The body is none of this frame."""


class Deletion(NamedTuple):
    """A delete request: seqs below `before_seq` (0 = any) that match (None = all), up to `bound_seq`, inclusive."""

    before_seq: int
    bound_seq: int
    match: Match | None = None

    @property
    def through_seq(self) -> int:
        """The last seq that it may remove."""
        return min(self.before_seq - 1, self.bound_seq) if self.before_seq else self.bound_seq

    @property
    def floor(self) -> int:
        """The delete floor that it sets; 0 with a match."""
        return 0 if self.match is not None else self.through_seq


class Removed(NamedTuple):
    """Rows of a batch that a delete removes, ascending, and their counts."""

    indices: NDArray[np.int64]
    seqs: NDArray[np.uint64]
    record_bytes: int


class DeleteBody(NamedTuple):
    """Body of a Delete frame. `seqs` is empty without a match."""

    deletion: Deletion
    seqs: SeqSet
    record_count: int
    record_bytes: int


class EvictBody(NamedTuple):
    """Body of an EvictWatermark frame."""

    cap_floor: int
    ttl_floor: int
    record_bytes: int


def removed_rows(batch: Batch, deletion: Deletion, *, trim_seq: int, deleted: SeqSet) -> Removed:
    """Return the live records of a placed batch that the delete removes, in seq order."""
    start, stop = batch.index_after(trim_seq), batch.index_after(deletion.through_seq)
    if deletion.match is None:
        indices = np.arange(start, max(start, stop))
    else:
        indices = matched(batch, deletion.match)
        indices = indices[(indices >= start) & (indices < stop)]
    if len(indices) and batch.has_gaps:
        indices = indices[batch.ops_array()[indices] != Op.GAP]
    if len(indices):
        gone = deleted.mask(batch)
        if gone is not None:
            indices = indices[~gone[indices]]
    if len(indices) == 0:
        return Removed(indices, np.zeros(0, dtype="<u8"), 0)
    return Removed(indices, batch.seq_array()[indices], int(counted_bytes(batch)[indices].sum()))


def encode_delete(body: DeleteBody) -> dict[str, str | int]:
    """Encode the frame's body."""
    deletion, seqs, record_count, record_bytes = body
    encoded: dict[str, str | int] = {
        "before_seq": deletion.before_seq,
        "bound_seq": deletion.bound_seq,
        "bitmap": b64encode(seqs.serialize()).decode(),
        "record_count": record_count,
        "record_bytes": record_bytes,
    }
    if deletion.match is not None:
        encoded["match_field"] = deletion.match.field.name
        encoded["match_kind"] = deletion.match.kind.name
        encoded["match_value"] = b64encode(deletion.match.value).decode()
    return encoded


def decode_delete(control: Mapping[str, str | int]) -> DeleteBody:
    """Decode the body of a Delete frame; unknown keys are ignored.

    Raises:
        BadBody: the body is none.
    """
    match = None
    if "match_field" in control:
        try:
            field, kind = MatchField[_text(control, "match_field")], MatchKind[_text(control, "match_kind")]
        except KeyError as error:
            raise BadBody(f"unknown match {error}") from error
        match = Match(field, kind, _binary(control, "match_value"))
    deletion = Deletion(_number(control, "before_seq"), _number(control, "bound_seq"), match)
    try:
        seqs = SeqSet.deserialize(_binary(control, "bitmap"))
    except BadSeqSet as error:
        raise BadBody(str(error)) from error
    return DeleteBody(deletion, seqs, _number(control, "record_count"), _number(control, "record_bytes"))


def encode_evict(body: EvictBody) -> dict[str, str | int]:
    """Encode the frame's body."""
    return {"cap_floor": body.cap_floor, "ttl_floor": body.ttl_floor, "record_bytes": body.record_bytes}


def decode_evict(control: Mapping[str, str | int]) -> EvictBody:
    """Decode the body of an EvictWatermark frame; unknown keys are ignored.

    Raises:
        BadBody: the body is none.
    """
    return EvictBody(_number(control, "cap_floor"), _number(control, "ttl_floor"), _number(control, "record_bytes"))


def _number(control: Mapping[str, str | int], name: str) -> int:
    value = control.get(name)
    if not isinstance(value, int) or value < 0:
        raise BadBody(f"{name} is {value!r}, not a number")
    return value


def _text(control: Mapping[str, str | int], name: str) -> str:
    value = control.get(name)
    if not isinstance(value, str):
        raise BadBody(f"{name} is {value!r}, not a string")
    return value


def _binary(control: Mapping[str, str | int], name: str) -> bytes:
    try:
        return b64decode(_text(control, name), validate=True)
    except ValueError as error:
        raise BadBody(f"{name} is not base64") from error


def visible(batch: Batch, floors: Floors, deleted: SeqSet) -> Batch:
    """Return the live rows of a placed batch in seq order; the same batch if all of them are."""
    above = batch.slice(batch.index_after(floors.trim), batch.count)
    gone = deleted.mask(above) if above.count else None
    if gone is None:
        return above
    return above.select(np.flatnonzero(~gone))
