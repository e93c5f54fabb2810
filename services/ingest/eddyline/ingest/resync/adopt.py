"""Taking a stream as it is now, whatever the position says: it was made again, was rolled back, or somebody asked for it.

Where the stream is another one, what the old one had and nobody read is told as a gap: up to the last revision it is known
to have had, and, since nobody can know of more, one of an unknown end. Of a bucket, keys that are gone get a synthetic
DELETE; what this stream had dropped already is a gap too; then the position is of this stream, before its first message,
and all of it is read. Up to what was its last revision when this began, a message that says what the fold has already is
not written again (`only_changes`): a bucket that was filled anew with the same values adds nothing, and every other
revision is there. Of a stream that was rolled back a key whose entry has a later version than its message is written all the
same: who waits for a version, or writes with one, must not meet one that the stream gives again.
Where it is the same stream, the newest message of every key is read up to the position and compared with the fold, what
differs is written, and keys that are gone are deleted; all behind the position is read as ever.

I1: the position says that this is done with the last of these batches; a crash before starts it over (an equal value is
not written twice, a repeated gap is harmless). I2: nothing is deleted unless the whole list of subjects was read.
Memory: a chunk, its entries of the fold, and the subjects of one bucket.
Threading: event loop.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eddyline.core.errors import InvalidArgument, NatsUnreachable
from eddyline.core.records.meta import encode_meta
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.ingest.copy.batch import VERSION_BYTES, gap_record
from eddyline.ingest.copy.cap_split import apply_within_cap
from eddyline.ingest.copy.consumer import Consumer, ConsumerLost
from eddyline.ingest.copy.filter import Filter
from eddyline.ingest.copy.gaps import source_gap, why_lost
from eddyline.ingest.copy.position import Position
from eddyline.ingest.resync.resync import ResyncResult, apply_changes, resync, vanished

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from eddyline.core.model.source import SourceDefinition
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.copy.batch import Chunk
    from eddyline.ingest.copy.consumer import Misfits
    from eddyline.ingest.copy.dead_letters import DeadLetters
    from eddyline.ingest.copy.forward import Forward
    from eddyline.ingest.nats.connection import Connection
    from eddyline.ingest.nats.jetstream import JetStream
    from eddyline.ingest.nats.stream import Stream


class AdoptionRequest(NamedTuple):
    """What an acceptance works with. `name` is its consumer's; `is_other` = the stream is not the one that the position is
    of, whose last revision is known to have been `lost_to`."""

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
    is_other: bool


async def adopt_stream(given: AdoptionRequest, position: Position) -> ResyncResult:
    """Bring the topic in step with the stream as it is now.

    Raises:
        SourceStopped: OVERSIZE. BucketNotFound, NatsUnreachable, and what the store's calls raise. A part may be done then.
    """
    if not given.is_other:
        return await _accept_same(given, position)
    stream = given.stream
    at = Position(
        stream.created_ns,
        max(stream.first_revision - 1, 0),
        resync_serial=given.resync_serial,
        time_ns=stream.server_ns,
    )
    gone = await _vanished(given)
    version = stream.last_revision.to_bytes(VERSION_BYTES, "big")
    rows = [gap_record(gap) for gap in _unread(position, given.lost_to)]
    rows += [Record(op=Op.DELETE, key=key, version=version) for key in gone]
    if at.revision and stream.created_ns != position.created_ns:
        reason = await why_lost(given.jetstream, stream)
        rows.append(gap_record(source_gap(stream, 1, at.revision, reason)))
    await apply_changes(given.forward, rows, position, end=at)
    told = max(given.lost_to, position.revision)
    lost = f", gap {position.revision + 1}-{told}" if told > position.revision else ""
    return ResyncResult(at, f"accepted: {len(gone)} deletes, reading from {at.revision + 1} what differs{lost}")


async def _accept_same(given: AdoptionRequest, position: Position) -> ResyncResult:
    here, puts = position, 0
    if given.stream.bucket:
        here, puts = await _take_values(given, position, through=position.revision)
    resynced = await resync(
        jetstream=given.jetstream,
        stream=given.stream,
        link=given.link,
        topic=given.definition.topic,
        position=here,
        forward=given.forward,
        takes=Filter(given.definition),
    )
    at = replace(resynced.position or here, resync_serial=given.resync_serial)
    if at.encode() != given.forward.stored:  # nobody asked for a resync, and the changes moved the position
        await given.forward.apply(None, at)
    return ResyncResult(at, f"accepted: {puts} puts" + (f"; {resynced.done}" if resynced.done else ""))


async def _vanished(given: AdoptionRequest) -> list[bytes]:
    """Keys that the fold has and the bucket has not."""
    if not given.stream.bucket:
        return []
    pages = given.link.range_entries(given.definition.topic)
    return await vanished(given.jetstream, given.stream, pages, takes=Filter(given.definition))


def _unread(position: Position, lost_to: int) -> list[Gap]:
    """What the old stream had behind the position: so much is known, and what came after it nobody knows."""
    identity = position.created_ns.to_bytes(8, "little", signed=True)
    unknown = Gap(
        0, 0, GapReason.SOURCE_GAP, source_identity=identity, source_first=max(position.revision, lost_to) + 1
    )
    if lost_to <= position.revision:
        return [unknown]
    return [unknown._replace(source_first=position.revision + 1, source_last=lost_to), unknown]


async def count_changed(given: AdoptionRequest, through: int) -> int:
    """How many keys whose newest message is of revision `through` or before say something else than the fold.

    Raises:
        BucketNotFound, NatsUnreachable, and what the store's reads raise.
    """
    count = 0
    async with aclosing(_changed_rows(given, through, misfits="SET_ASIDE")) as found:
        async for _, rows in found:
            count += len(rows)
    return count


async def _take_values(given: AdoptionRequest, here: Position, *, through: int) -> tuple[Position, int]:
    """Write every value up to revision `through` that the fold has not; the position then, which is at the same revision as
    before, and how many values those were."""
    puts = 0
    misfits: Misfits = "SET_ASIDE" if given.definition.dead_letter_topic else "STOP"
    async with aclosing(_changed_rows(given, through, misfits=misfits)) as found:
        async for chunk, changed in found:
            await given.dead_letters.keep(given.stream, chunk.misfits)
            batch = chunk.batch()
            if batch is not None and changed:
                here = here.after_changes()
                picked = batch.select(np.array(changed, dtype=np.int64))
                await apply_within_cap(given.forward, picked, here, moves=False)
                puts += len(changed)
    return here, puts


async def _changed_rows(
    given: AdoptionRequest, through: int, *, misfits: Misfits
) -> AsyncGenerator[tuple[Chunk, list[int]], None]:
    """The newest message of every key, chunk by chunk, with those rows up to revision `through` that say something else than
    the fold. Whoever breaks off closes it, which deletes the consumer."""
    if given.stream.last_revision == 0:
        return
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
        misfits=misfits,
    )
    try:
        async with consumer:
            reached = 0
            while reached < through and not consumer.drained:
                chunk = await consumer.take()
                if chunk is None:
                    break
                reached = chunk.last_revision
                yield chunk, await _changed(given, chunk, through)
    except ConsumerLost as lost:
        raise NatsUnreachable(f"{given.stream.origin} cannot be read: {lost}") from lost


async def _changed(given: AdoptionRequest, chunk: Chunk, through: int) -> list[int]:
    """The rows of a chunk, up to revision `through`, that say something else than the fold."""
    changed = await only_changes(given.link, given.definition.topic, chunk)
    return [row for row in changed if chunk.revisions[row] <= through]


async def only_changes(link: StoreLink, topic: str, chunk: Chunk, *, later_too: bool = False) -> list[int]:
    """The rows of a chunk that say something else than the fold and the rows before them. `later_too` = also those whose
    entry has a later version, which only a stream that was rolled back since can have had."""
    if not chunk.count:
        return []
    keys = list(dict.fromkeys(chunk.keys))
    last = dict(zip(chunk.keys, chunk.revisions, strict=True))
    live: dict[bytes, tuple[bytes | None, bytes]] = {}
    stale: set[bytes] = set()
    for key, entry in zip(keys, await _entries(link, topic, keys), strict=True):
        if entry is not None:
            if later_too and int.from_bytes(entry.version, "big") > last[key]:
                stale.add(key)
            live[key] = entry.data, encode_meta(entry.meta) if entry.meta else b""
    changed: list[int] = []
    for row, key in enumerate(chunk.keys):
        said = (chunk.data[row], chunk.metas[row]) if chunk.ops[row] == Op.PUT else None
        if live.get(key) == said and key not in stale:
            continue
        changed.append(row)
        stale.discard(key)
        if said is None:
            del live[key]
        else:
            live[key] = said
    return changed


async def _entries(link: StoreLink, topic: str, keys: Sequence[bytes]) -> Sequence[Record | None]:
    """The fold's entries of keys, in fewer at a time where they do not fit into one answer."""
    try:
        return (await link.batch_get_entries(topic, keys)).entries
    except InvalidArgument:
        if len(keys) == 1:
            raise
    half = len(keys) // 2
    return [*await _entries(link, topic, keys[:half]), *await _entries(link, topic, keys[half:])]
