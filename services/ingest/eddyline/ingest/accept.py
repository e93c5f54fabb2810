"""Taking a stream as it is now, whatever the position says: it was made again, was rolled back, or somebody asked for it.

Of a bucket the newest message of every key is read and compared with the fold: what is equal is not written again, what
differs is, and a key that is gone gets a synthetic DELETE. Then the position is of this stream, at the revision that was its
last when this began, and reading goes on from there. Of a stream by itself, which has no fold, reading begins at its
first message where it is another one. What the old stream had and nobody read is told as a gap, as far as it is known.

I1: the position becomes one of the new stream with the last of these batches; a crash before starts it over (an equal
value is not written twice, a repeated gap is harmless). I2: nothing is deleted unless the whole list of subjects was read.
Memory: a chunk, its entries of the fold, and the subjects of one bucket.
Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eddyline.core.batch import Batch
from eddyline.core.errors import InvalidArgument, NatsUnreachable
from eddyline.core.meta import encode_meta
from eddyline.core.record import Gap, GapReason, Op, Record
from eddyline.ingest.batch import CHUNK_RECORDS_MAX, VERSION_BYTES, gap_record
from eddyline.ingest.consumer import Consumer, ConsumerLost
from eddyline.ingest.filters import Filter
from eddyline.ingest.position import Position
from eddyline.ingest.resync import Resynced, vanished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.clock import Clock
    from eddyline.core.source import SourceDefinition
    from eddyline.core.store_link import StoreLink
    from eddyline.ingest.batch import Chunk
    from eddyline.ingest.connection import Connection
    from eddyline.ingest.dead_letters import DeadLetters
    from eddyline.ingest.forward import Forward
    from eddyline.ingest.jetstream import JetStream
    from eddyline.ingest.stream import Stream


class Acceptance(NamedTuple):
    """What an acceptance works with. `name` is its consumer's; `lost_to` = the last revision that the old stream is known to
    have had."""

    definition: SourceDefinition
    stream: Stream
    jetstream: JetStream
    connection: Connection
    link: StoreLink
    forward: Forward
    dead_letters: DeadLetters
    clock: Clock
    name: str
    resync_serial: int
    lost_to: int


async def accept(given: Acceptance, position: Position) -> Resynced:
    """Bring the topic in step with the stream as it is now.

    Raises:
        SourceStopped: OVERSIZE. BucketNotFound, NatsUnreachable, and what the store's calls raise. A part may be done then.
    """
    stream = given.stream
    is_other = stream.created_ns != position.created_ns or stream.last_revision < position.revision
    rows = [gap_record(_unread(position, given.lost_to))] if is_other and given.lost_to > position.revision else []
    told = f", gap {position.revision + 1}-{given.lost_to}" if rows else ""
    if not stream.bucket:
        start = stream.first_revision - 1 if is_other else position.revision
        here = Position(stream.created_ns, max(start, 0), resync_serial=given.resync_serial)
        await given.forward.apply(Batch.from_rows(rows) if rows else None, _other(here, position))
        return Resynced(here, f"accepted: reading from {here.revision + 1}{told}")
    here, puts = await _take_values(given, position, rows)
    gone = await vanished(given.jetstream, stream, given.link.range_entries(given.definition.topic))
    version = stream.last_revision.to_bytes(VERSION_BYTES, "big")
    deletes = [Record(op=Op.DELETE, key=key, version=version) for key in gone]
    for start in range(0, len(deletes), CHUNK_RECORDS_MAX):
        here = here.after_changes()
        await given.forward.apply(Batch.from_rows(deletes[start : start + CHUNK_RECORDS_MAX]), here)
    at = _other(Position(stream.created_ns, stream.last_revision, resync_serial=given.resync_serial), here)
    await given.forward.apply(None, at)
    return Resynced(at, f"accepted: {len(deletes)} deletes, {puts} puts{told}")


def _other(position: Position, before: Position) -> Position:
    """`position`, or one like it where `before` is the same: what follows must differ."""
    return position if position != before else position.after_changes()


def _unread(position: Position, lost_to: int) -> Gap:
    """What the old stream had behind the position."""
    identity = position.created_ns.to_bytes(8, "little", signed=True)
    return Gap(
        0, 0, GapReason.SOURCE_GAP, source_identity=identity, source_first=position.revision + 1, source_last=lost_to
    )


async def _take_values(given: Acceptance, position: Position, rows: Sequence[Record]) -> tuple[Position, int]:
    """Write `rows`, and every value that the fold has not; the position then, which is still of the old stream, and how many
    values those were."""
    here, puts = position, 0
    if rows:
        here = here.after_changes()
        await given.forward.apply(Batch.from_rows(rows), here)
    if given.stream.last_revision == 0:
        return here, puts
    consumer = Consumer(
        given.connection,
        given.jetstream,
        given.stream,
        name=given.name,
        start_revision=1,
        start_ns=0,
        clock=given.clock,
        metadata={"eddyline_source": given.definition.name},
        on_lost=lambda _reason: None,
        policy="last_per_subject",
        takes=Filter(given.definition),
        misfits="SET_ASIDE" if given.definition.dead_letter_topic else "STOP",
    )
    try:
        async with consumer:
            reached = 0
            while reached < given.stream.last_revision and not consumer.drained:
                chunk = await consumer.take()
                if chunk is None:
                    break
                reached = chunk.last_revision
                await given.dead_letters.keep(given.stream, chunk.misfits)
                changed = await _changed(given, chunk)
                batch = chunk.batch()
                if batch is not None and changed:
                    here = here.after_changes()
                    await given.forward.apply(batch.select(np.array(changed, dtype=np.int64)), here)
                    puts += len(changed)
    except ConsumerLost as lost:
        raise NatsUnreachable(f"{given.stream.origin} cannot be read: {lost}") from lost
    return here, puts


async def _changed(given: Acceptance, chunk: Chunk) -> list[int]:
    """The rows of a chunk that say something else than the fold."""
    if not chunk.count:
        return []
    changed: list[int] = []
    for row, entry in enumerate(await _entries(given, chunk.keys)):
        is_live = chunk.ops[row] == Op.PUT
        if entry is None:
            equal = not is_live
        else:
            meta = encode_meta(entry.meta) if entry.meta else b""
            equal = is_live and entry.data == chunk.data[row] and meta == chunk.metas[row]
        if not equal:
            changed.append(row)
    return changed


async def _entries(given: Acceptance, keys: Sequence[bytes]) -> Sequence[Record | None]:
    """The fold's entries of keys, in fewer at a time where they do not fit into one answer."""
    try:
        return (await given.link.batch_get_entries(given.definition.topic, keys)).entries
    except InvalidArgument:
        if len(keys) == 1:
            raise
    half = len(keys) // 2
    return [*await _entries(given, keys[:half]), *await _entries(given, keys[half:])]
