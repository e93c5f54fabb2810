"""Folds that drift from their buckets, by writes that ingest, or the store, does not see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.records.batch import Batch
from eddyline.core.records.fold_entry import encode_entry
from eddyline.core.records.record import Op, Record
from eddyline.ingest.copy.position import decode_position
from eddyline.store.fold.fold import FoldWrite

if TYPE_CHECKING:
    from eddyline.store.shard.shard import Shard

RECORDS_A_BATCH = 1_000


async def drift(link: Shard, source: str, changes: dict[str, bytes | None]) -> None:
    """Write a source's topic as the source would, with its own lease, while no replica has it; None = a delete."""
    lease = await link.acquire_lease(source, holder="drift", lease_ms=60_000)
    stored = lease.source.position
    rows = [
        Record(op=Op.DELETE if data is None else Op.PUT, key=key.encode(), data=data, version=(1).to_bytes(8, "big"))
        for key, data in changes.items()
    ]
    for start in range(0, len(rows), RECORDS_A_BATCH):
        position = decode_position(stored)
        assert position is not None, "the source has copied something"
        new = position.after_changes().encode()
        batch = Batch.from_rows(rows[start : start + RECORDS_A_BATCH])
        await link.apply_batch(source, fence=lease.fence, previous=stored, new=new, batch=batch)
        stored = new
    await link.release_lease(source, fence=lease.fence)


def corrupt_row(link: Shard, topic: str, key: bytes, data: bytes | None) -> None:
    """Change one row of a topic's RocksDB fold, unseen by the store; None = remove it."""
    topic_id = link._table.get(topic).id
    fold = link._engine.fold
    entry = None if data is None else encode_entry(Record(1, 1, 0, Op.PUT, key, data, version=(1).to_bytes(8, "big")))
    fold.apply([FoldWrite(topic_id, fold.applied(topic_id), [(key, entry)], [])])
