"""Resync: key sets compared before a source reads on from a position, since messages may have left while it did not read.

Messages can leave with no trace behind them (a purge, an expiry without marker, a marker that was itself removed), so the
fold's keys are compared with the stream's subjects: a key without a subject gets a synthetic DELETE. If the stream now
begins behind the position, a gap reports the lost revisions first. Reading then goes on from the stream's first revision:
everything there is newer than the position, so nothing is lost or doubled.

I1: the position passes the lost revisions with the last of these batches; after a crash before that the resync starts
over (a repeated gap is harmless, a repeated delete finds no key).
I2: keys are deleted only after the whole list was read. If it took several pages, which are of several moments, each
candidate is confirmed by having no message now.
I3: a key that the API cannot name exactly (not UTF-8) is never deleted here.
Memory: the subjects of one bucket, about 100 bytes each; the caller bounds how many resyncs run at the same time.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import EddylineError
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.ingest.copy.batch import CHANGES_RECORDS_MAX, VERSION_BYTES, gap_record
from eddyline.ingest.copy.cap_split import apply_within_cap
from eddyline.ingest.copy.gaps import source_gap, why_lost
from eddyline.ingest.copy.position import StreamPosition, revision_of
from eddyline.ingest.nats.jetstream import nameable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from eddyline.core.model.read import RangePage
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.copy.filter import Filter
    from eddyline.ingest.copy.forward import Forward
    from eddyline.ingest.nats.jetstream import JetStream
    from eddyline.ingest.nats.stream import Stream

CONFIRMS_AT_ONCE: Final = 64
"""Requests in flight to the server; 64 hide the round trip, more would queue there."""


class ResyncResult(NamedTuple):
    """The position to read on behind, and a description of the resync."""

    position: StreamPosition | None
    done: str


async def resync(
    *,
    jetstream: JetStream,
    stream: Stream,
    link: StoreLink,
    topic: str,
    position: StreamPosition | None,
    forward: Forward,
    resync_serial: int = 0,
    key_filter: Filter | None = None,
) -> ResyncResult:
    """Bring fold and position in step with what the stream no longer has. A stream without a bucket has no fold.

    Raises:
        BucketNotFound, NatsUnreachable, and what the store's calls raise: nothing or a part of it was done.
    """
    has_fold = position is not None and bool(stream.bucket)
    gone = await vanished_keys(jetstream, stream, link.range_entries(topic), key_filter=key_filter) if has_fold else []
    at_revision = revision_of(position)
    lost = stream.first_revision > at_revision + 1
    resume = stream.first_revision - 1 if lost else at_revision
    version = resume.to_bytes(VERSION_BYTES, "big")
    rows = [Record(op=Op.DELETE, key=key, version=version) for key in gone]
    if lost:
        reason = await why_lost(jetstream, stream, gone=bool(gone))
        rows.insert(0, gap_record(source_gap(stream, at_revision + 1, resume, reason)))
    if rows:
        current = position or StreamPosition(
            stream.created_ns, 0, resync_serial=resync_serial, time_ns=stream.server_ns
        )
        end = current.advanced_to(resume, stream.server_ns) if lost else None
        position = await apply_changes(forward, rows, current, end=end)
    done = [f"{len(gone)} deletes"] if gone else []
    done += [f"gap {at_revision + 1}-{resume}"] if lost else []
    return ResyncResult(position, "resync: " + ", ".join(done) if done else "")


async def apply_changes(
    forward: Forward, rows: Sequence[Record], current: StreamPosition, *, end: StreamPosition | None = None
) -> StreamPosition:
    """Apply records that no message brought, in batches of at most `CHANGES_RECORDS_MAX`, and return the position reached.

    `current` is the stored position, or the one to begin with. `end`, where it is given, is stored with the last batch.

    Raises:
        As `Forward.apply`; a part of it may be done then.
    """
    for start in range(0, len(rows), CHANGES_RECORDS_MAX):
        is_last = start + CHANGES_RECORDS_MAX >= len(rows)
        current = end if end is not None and is_last else current.after_changes()
        await apply_within_cap(
            forward, Batch.from_rows(rows[start : start + CHANGES_RECORDS_MAX]), current, moves=False
        )
    forward.counts.synthetic_deletes += sum(row.op is Op.DELETE for row in rows)
    return current


async def vanished_keys(
    jetstream: JetStream, stream: Stream, pages: AsyncIterator[RangePage], *, key_filter: Filter | None = None
) -> list[bytes]:
    """Keys of the fold, read from `pages`, that have no message in the bucket or that `key_filter` leaves out.

    Raises:
        BucketNotFound, NatsUnreachable, and what reading the pages raises.
    """
    subjects = await jetstream.subjects(stream)
    candidates: list[bytes] = []
    filtered_out: list[bytes] = []
    async for page in pages:
        if page.batch is not None:
            if key_filter is not None and not key_filter.matches_all:
                filtered_out += [key for key in page.batch.keys() if key is not None and not key_filter.matches(key)]  # noqa: SIM118
            candidates += [
                key
                for key in page.batch.keys()  # noqa: SIM118 - a batch is no mapping
                if key is not None and stream.prefix + key not in subjects.names and nameable(key)
            ]
    if not subjects.paged:
        return sorted({*candidates, *filtered_out})
    confirmed = list(filtered_out)
    for start in range(0, len(candidates), CONFIRMS_AT_ONCE):
        confirmed += await _without_message(jetstream, stream, candidates[start : start + CONFIRMS_AT_ONCE])
    return sorted(set(confirmed))


async def _without_message(jetstream: JetStream, stream: Stream, keys: list[bytes]) -> list[bytes]:
    try:
        async with asyncio.TaskGroup() as group:
            lookups = [
                group.create_task(jetstream.last_message(stream, (stream.prefix + key).decode())) for key in keys
            ]
    except* EddylineError as errors:
        raise errors.exceptions[0] from None
    return [key for key, task in zip(keys, lookups, strict=True) if task.result() is None]
