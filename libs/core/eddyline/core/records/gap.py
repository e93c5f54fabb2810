"""Gap records: the payload of a record of op GAP, and the split of a batch at its gap records.

    payload = u8 1 (format), u8 reason, u16 identity length, u32 0, u64 first, u64 last, identity     little-endian

With SOURCE_GAP and SUPERSEDED `first` and `last` are revisions of the source's stream; `last` is 0 if their number is
unknown. No seq was lost then, so the `Gap` that readers get covers only the seq of the gap record itself. With UNSYNCED
they are the lost seqs.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import MalformedColumns
from eddyline.core.records.record import Gap, GapReason, Op, gap_reason_of

if TYPE_CHECKING:
    from eddyline.core.records.batch import Batch

_HEAD: Final = Struct("<BBHIQQ")
_FORMAT: Final = 1
OF_SOURCE: Final = (GapReason.SOURCE_GAP, GapReason.SUPERSEDED)
"""Reasons that a source may report, in revisions of its own stream. Only the store reports the others."""


def encode_gap(gap: Gap) -> bytes:
    """Return the data of the gap record for `gap`; its `seq`, and its range if the source lost it, are not part of it.

    Raises:
        MalformedColumns: the identity has more than 65 535 bytes.
    """
    identity = gap.source_identity
    if len(identity) > 0xFFFF:
        message = f"a gap's source identity has {len(identity)} bytes, at most 65 535"
        raise MalformedColumns(message, field="data", lengthBytes=len(identity), limitBytes=0xFFFF)
    of_source = gap.reason in OF_SOURCE
    first, last = (gap.source_first, gap.source_last) if of_source else (gap.first_seq, gap.last_seq)
    return _HEAD.pack(_FORMAT, gap.reason, len(identity), 0, first, last) + identity


def gap_of(record_seq: int, data: bytes) -> Gap:
    """Return the gap of a gap record.

    Raises:
        MalformedColumns: `data` does not follow the grammar.
    """
    if len(data) < _HEAD.size:
        message = f"a gap payload of {len(data)} bytes, at least {_HEAD.size}"
        raise MalformedColumns(message, field="data", lengthBytes=len(data), leastBytes=_HEAD.size)
    version, reason, identity_length, zero, first, last = _HEAD.unpack_from(data)
    if version != _FORMAT or zero != 0 or len(data) != _HEAD.size + identity_length:
        raise MalformedColumns("a gap payload is malformed", field="data")
    identity = data[_HEAD.size :]
    gap_reason = gap_reason_of(reason)
    if last < first and (last or gap_reason not in OF_SOURCE):
        raise MalformedColumns("a gap payload has a last seq below its first", field="data")
    if gap_reason in OF_SOURCE:
        return Gap(
            record_seq,
            record_seq,
            gap_reason,
            record_seq,
            source_identity=identity,
            source_first=first,
            source_last=last,
        )
    return Gap(first, last, gap_reason, record_seq, source_identity=identity)


def split_gaps(batch: Batch) -> list[Batch | Gap]:
    """Split the batch as readers get it: batches without gap records, and gaps at their positions.

    Raises:
        MalformedColumns: a gap record's data does not follow the grammar.
    """
    ops = batch.ops
    if ops is None or Op.GAP not in ops:
        return [batch] if batch.count else []
    items: list[Batch | Gap] = []
    start = 0
    for index in (batch.ops_array() == Op.GAP).nonzero()[0].tolist():
        if start < index:
            items.append(batch.slice(start, index))
        record = batch.slice(index, index + 1).to_rows()[0]
        items.append(gap_of(record.seq, record.data or b""))
        start = index + 1
    if start < batch.count:
        items.append(batch.slice(start, batch.count))
    return items
