"""Adoption of a stream as it is now, whatever the position says: it was recreated or rolled back, or a resync was requested.

If the stream is another one, a gap covers the revisions of the old one that were never read: up to the last revision
it is known to have had, and a second gap without an end for those that nothing recorded. Of a bucket, keys that are gone
get a synthetic DELETE; revisions that the present stream dropped already are a gap too. Then the position is of the
present stream, before its first message, and all of it is read. Up to the last revision at the start of the adoption, a
message that agrees with the fold is not written (`only_changes`): a bucket refilled with the same values adds nothing,
and every other revision is written. Of a stream that was rolled back, a key whose entry has a later version than its
message is written all the same: a caller that waits for a version, or writes with one, must not meet a version that the
stream will assign again. If it is the same stream, the newest message of every key up to the position is compared with
the fold, differences are written, and keys that are gone are deleted; revisions behind the position are read as usual.

I1: the position records the adoption with the last of these batches; after a crash before that it starts over (an equal
value is not written twice, a repeated gap is harmless). I2: keys are deleted only after the whole list of subjects was
read.
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
from eddyline.ingest.copy.position import StreamPosition
from eddyline.ingest.resync.resync import ResyncResult, apply_changes, resync, vanished_keys

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from eddyline.core.model.source import SourceDefinition
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.copy.batch import Chunk
    from eddyline.ingest.copy.consumer import UnfitPolicy
    from eddyline.ingest.copy.dead_letters import DeadLetters
    from eddyline.ingest.copy.forward import Forward
    from eddyline.ingest.nats.connection import Connection
    from eddyline.ingest.nats.jetstream import JetStream
    from eddyline.ingest.nats.stream import Stream


class AdoptionRequest(NamedTuple):
    """Inputs of an adoption. `name` = its consumer's. `is_other` = the position is not of this stream; `lost_to` = last
    revision that the position's stream is known to have had."""

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


async def adopt_stream(request: AdoptionRequest, position: StreamPosition) -> ResyncResult:
    """Bring the topic in step with the stream as it is now.

    Raises:
        SourceStopped: OVERSIZE. BucketNotFound, NatsUnreachable, and what the store's calls raise. A part may be done
            then.
    """
    if not request.is_other:
        return await _adopt_same(request, position)
    stream = request.stream
    position_after = StreamPosition(
        stream.created_ns,
        max(stream.first_revision - 1, 0),
        resync_serial=request.resync_serial,
        time_ns=stream.server_ns,
    )
    gone = await _vanished_keys(request)
    version = stream.last_revision.to_bytes(VERSION_BYTES, "big")
    rows = [gap_record(gap) for gap in _unread_gaps(position, request.lost_to)]
    rows += [Record(op=Op.DELETE, key=key, version=version) for key in gone]
    if position_after.revision and stream.created_ns != position.created_ns:
        reason = await why_lost(request.jetstream, stream)
        rows.append(gap_record(source_gap(stream, 1, position_after.revision, reason)))
    await apply_changes(request.forward, rows, position, end=position_after)
    known_to = max(request.lost_to, position.revision)
    lost = f", gap {position.revision + 1}-{known_to}" if known_to > position.revision else ""
    return ResyncResult(
        position_after, f"accepted: {len(gone)} deletes, reading changes from {position_after.revision + 1}{lost}"
    )


async def _adopt_same(request: AdoptionRequest, position: StreamPosition) -> ResyncResult:
    current, puts = position, 0
    if request.stream.bucket:
        current, puts = await _write_changed_values(request, position, through=position.revision)
    result = await resync(
        jetstream=request.jetstream,
        stream=request.stream,
        link=request.link,
        topic=request.definition.topic,
        position=current,
        forward=request.forward,
        key_filter=Filter(request.definition),
    )
    position_after = replace(result.position or current, resync_serial=request.resync_serial)
    if (
        position_after.encode() != request.forward.stored
    ):  # else no resync was requested, and the changes moved the position
        await request.forward.apply(None, position_after)
    return ResyncResult(position_after, f"accepted: {puts} puts" + (f"; {result.done}" if result.done else ""))


async def _vanished_keys(request: AdoptionRequest) -> list[bytes]:
    """Keys that the fold has and the bucket has not."""
    if not request.stream.bucket:
        return []
    pages = request.link.range_entries(request.definition.topic)
    return await vanished_keys(request.jetstream, request.stream, pages, key_filter=Filter(request.definition))


def _unread_gaps(position: StreamPosition, lost_to: int) -> list[Gap]:
    """Gaps for revisions of the old stream behind the position: the known range, and one without an end."""
    identity = position.created_ns.to_bytes(8, "little", signed=True)
    unknown = Gap(
        0, 0, GapReason.SOURCE_GAP, source_identity=identity, source_first=max(position.revision, lost_to) + 1
    )
    if lost_to <= position.revision:
        return [unknown]
    return [unknown._replace(source_first=position.revision + 1, source_last=lost_to), unknown]


async def count_changed(request: AdoptionRequest, through: int) -> int:
    """Number of keys whose newest message, of revision `through` or before, differs from the fold.

    Raises:
        BucketNotFound, NatsUnreachable, and what the store's reads raise.
    """
    count = 0
    async with aclosing(_changed_rows(request, through, unfit_policy="SET_ASIDE")) as changed_chunks:
        async for _, rows in changed_chunks:
            count += len(rows)
    return count


async def _write_changed_values(
    request: AdoptionRequest, current: StreamPosition, *, through: int
) -> tuple[StreamPosition, int]:
    """Write every value up to revision `through` that the fold has not. Returns the position, at the same revision as
    before, and the number of values written."""
    puts = 0
    unfit_policy: UnfitPolicy = "SET_ASIDE" if request.definition.dead_letter_topic else "STOP"
    async with aclosing(_changed_rows(request, through, unfit_policy=unfit_policy)) as changed_chunks:
        async for chunk, changed in changed_chunks:
            await request.dead_letters.store(request.stream, chunk.unfit)
            batch = chunk.batch()
            if batch is not None and changed:
                current = current.after_changes()
                picked = batch.select(np.array(changed, dtype=np.int64))
                await apply_within_cap(request.forward, picked, current, moves=False)
                puts += len(changed)
    return current, puts


async def _changed_rows(
    request: AdoptionRequest, through: int, *, unfit_policy: UnfitPolicy
) -> AsyncGenerator[tuple[Chunk, list[int]], None]:
    """The newest message of every key, chunk by chunk, with the rows up to revision `through` that differ from the fold. The
    caller must close it, which deletes the consumer."""
    if request.stream.last_revision == 0:
        return
    consumer = Consumer(
        request.connection,
        request.jetstream,
        request.stream,
        name=request.name,
        start_revision=1,
        start_ns=0,
        clock=request.clock,
        metadata={"eddyline_source": request.definition.name},
        on_lost=lambda _reason: None,
        policy="last_per_subject",
        key_filter=Filter(request.definition),
        unfit_policy=unfit_policy,
    )
    try:
        async with consumer:
            reached = 0
            while reached < through and not consumer.drained:
                chunk = await consumer.next_chunk()
                if chunk is None:
                    break
                reached = chunk.last_revision
                yield chunk, await _changed(request, chunk, through)
    except ConsumerLost as lost:
        raise NatsUnreachable(f"{request.stream.origin} cannot be read: {lost}") from lost


async def _changed(request: AdoptionRequest, chunk: Chunk, through: int) -> list[int]:
    """Rows of a chunk, up to revision `through`, that differ from the fold."""
    changed = await only_changes(request.link, request.definition.topic, chunk)
    return [row for row in changed if chunk.revisions[row] <= through]


async def only_changes(link: StoreLink, topic: str, chunk: Chunk, *, later_too: bool = False) -> list[int]:
    """Rows of a chunk that differ from the fold and the rows before them.

    `later_too` = also rows whose entry has a later version, which only a stream that was rolled back since can have had.
    """
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
        value = (chunk.data[row], chunk.metas[row]) if chunk.ops[row] == Op.PUT else None
        if live.get(key) == value and key not in stale:
            continue
        changed.append(row)
        stale.discard(key)
        if value is None:
            del live[key]
        else:
            live[key] = value
    return changed


async def _entries(link: StoreLink, topic: str, keys: Sequence[bytes]) -> Sequence[Record | None]:
    """The fold's entries of keys, in smaller requests where they do not fit into one answer."""
    try:
        return (await link.batch_get_entries(topic, keys)).entries
    except InvalidArgument:
        if len(keys) == 1:
            raise
    half = len(keys) // 2
    return [*await _entries(link, topic, keys[:half]), *await _entries(link, topic, keys[half:])]
