"""Comparing a source's fold with its bucket, key by key and value by value.

The bucket's newest message of every key is read by a consumer of its own, the fold by one range scan; both are of slightly
different moments, so each key that differs is looked at again, on both sides, until it agrees or the time to settle
is over. Values are held as hashes: about 150 bytes a key of memory, for one comparison at a time a replica. So a message
that no record can hold is compared like any other: its key is missing in the fold, or has an older value.
Any replica can do it for any source. Nothing is changed on either side.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from xxhash import xxh3_128_digest

from eddyline.core.clock import sleep
from eddyline.core.errors import NatsUnreachable, NotKv
from eddyline.core.record import KEY_BYTES_MAX, Op
from eddyline.ingest.consumer import Consumer, ConsumerLost
from eddyline.ingest.decode import TooLarge, parse_headers
from eddyline.ingest.filters import Filter
from eddyline.ingest.jetstream import nameable
from eddyline.ingest.position import decode_position, revision_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.clock import Clock
    from eddyline.core.record import Record
    from eddyline.core.source import SourceDefinition
    from eddyline.core.store_link import StoreLink
    from eddyline.ingest.connection import Connection
    from eddyline.ingest.jetstream import JetStream
    from eddyline.ingest.stream import Stream

LOOK_INTERVAL_S: Final = 0.1
KEYS_AT_ONCE: Final = 64


class Kind(IntEnum):
    """How a key differs. The numbers are the contract's."""

    MISSING = 1
    SURPLUS = 2
    VALUE = 3


class Live:
    """A live key's revision and the hash of its value. Equal values are equal: a bucket that was made again has revisions of
    its own."""

    __slots__ = ("revision", "value")

    def __init__(self, revision: int, value: bytes) -> None:
        self.revision = revision
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Live) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


class Difference(NamedTuple):
    """A key whose fold entry is not what the bucket has. Revision 0 = not live there."""

    key: bytes
    kind: Kind
    bucket_revision: int
    fold_revision: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome; `differences` by key, cut to what was asked for."""

    bucket_count: int
    fold_count: int
    difference_count: int
    differences: tuple[Difference, ...]
    position_revision: int


@dataclass(frozen=True, slots=True)
class Comparer:
    """What a comparison works with. `name` is that of its consumer, unique."""

    link: StoreLink
    connection: Connection
    jetstream: JetStream
    clock: Clock
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def compare(self, source: SourceDefinition, *, name: str, settle_s: float, limit: int) -> Comparison:
        """Compare, for at most `settle_s` beside the time that reading takes; one comparison at a time, others wait.

        Raises:
            BucketNotFound, NatsUnreachable, and what the store's reads raise.
        """
        async with self.turn:
            return await self._compare(source, name, settle_s, limit)

    async def _compare(self, source: SourceDefinition, name: str, settle_s: float, limit: int) -> Comparison:
        if not source.bucket:
            raise NotKv(f"source {source.name} copies a stream, which has no fold to compare", source=source.name)
        stream = await self.jetstream.stream(source.bucket)
        bucket = await self._bucket(source, stream, name)
        fold = await self._fold(source.topic)
        keys = [key for key in bucket.keys() | fold.keys() if bucket.get(key) != fold.get(key)]
        deadline_s = self.clock.monotonic_s() + settle_s
        while True:
            keys = await self._look_again(stream, source.topic, sorted(keys), bucket, fold)
            if not keys or self.clock.monotonic_s() >= deadline_s:
                break
            await sleep(self.clock, LOOK_INTERVAL_S)
        info = await self.link.get_source(source.name)
        return Comparison(
            bucket_count=len(bucket),
            fold_count=len(fold),
            difference_count=len(keys),
            differences=tuple(_difference(key, bucket.get(key), fold.get(key)) for key in keys[:limit]),
            position_revision=revision_of(decode_position(info.position)),
        )

    async def _bucket(self, source: SourceDefinition, stream: Stream, name: str) -> dict[bytes, Live]:
        """Every live key that the source copies, as of at least the moment of the call."""
        found: dict[bytes, Live] = {}
        if stream.last_revision == 0:
            return found
        consumer = Consumer(
            self.connection,
            self.jetstream,
            stream,
            name=name,
            start_revision=1,
            start_ns=0,
            clock=self.clock,
            metadata={"eddyline_compare": stream.bucket},
            on_lost=lambda _reason: None,
            policy="last_per_subject",
            takes=Filter(source),
            misfits="TAKE",
        )
        try:
            async with consumer:
                reached = 0
                while reached < stream.last_revision and not consumer.drained:
                    chunk = await consumer.take()
                    if chunk is None:
                        break
                    for key, op, revision, data in zip(chunk.keys, chunk.ops, chunk.revisions, chunk.data, strict=True):
                        _put(found, key, op, revision, data)
                    reached = chunk.last_revision
        except ConsumerLost as lost:
            raise NatsUnreachable(f"bucket {stream.bucket} cannot be read: {lost}") from lost
        return found

    async def _fold(self, topic: str) -> dict[bytes, Live]:
        found: dict[bytes, Live] = {}
        async for page in self.link.range_entries(topic):
            if page.batch is not None:
                found.update((row.key or b"", _live_entry(row)) for row in page.batch.to_rows())
        return found

    async def _look_again(
        self, stream: Stream, topic: str, keys: list[bytes], bucket: dict[bytes, Live], fold: dict[bytes, Live]
    ) -> list[bytes]:
        """Read keys anew on both sides, the bucket first; those that still differ."""
        for start in range(0, len(keys), KEYS_AT_ONCE):
            some = keys[start : start + KEYS_AT_ONCE]
            for key, live in zip(some, await self._bucket_values(stream, some, bucket), strict=True):
                _set(bucket, key, live)
            askable = [key for key in some if len(key) <= KEY_BYTES_MAX]  # a longer one is in no fold
            if not askable:
                continue
            page = await self.link.batch_get_entries(topic, askable)
            for key, entry in zip(askable, page.entries, strict=True):
                _set(fold, key, None if entry is None else _live_entry(entry))
        return [key for key in keys if bucket.get(key) != fold.get(key)]

    async def _bucket_values(
        self, stream: Stream, keys: Sequence[bytes], known: dict[bytes, Live]
    ) -> list[Live | None]:
        async def value(key: bytes) -> Live | None:
            subject = stream.prefix + key
            if not nameable(subject):
                return known.get(key)  # the API cannot be asked for it
            message = await self.jetstream.last_message(stream, subject.decode())
            if message is None:
                return None
            found: dict[bytes, Live] = {}
            _put(found, key, _op_of(message["headers"]), message["seq"], message["data"])
            return found.get(key)

        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(value(key)) for key in keys]
        except* NatsUnreachable as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in asked]


def _op_of(headers: bytes) -> int:
    try:
        return parse_headers(headers).op
    except TooLarge:
        return Op.PUT  # no record of ours holds it, and the fold cannot have it


def _put(found: dict[bytes, Live], key: bytes, op: int, revision: int, data: bytes) -> None:
    _set(found, key, Live(revision, xxh3_128_digest(data)) if op == Op.PUT else None)


def _set(found: dict[bytes, Live], key: bytes, live: Live | None) -> None:
    if live is None:
        found.pop(key, None)
    else:
        found[key] = live


def _live_entry(entry: Record) -> Live:
    return Live(int.from_bytes(entry.version, "big"), xxh3_128_digest(entry.data or b""))


def _difference(key: bytes, bucket: Live | None, fold: Live | None) -> Difference:
    kind = Kind.MISSING if fold is None else Kind.SURPLUS if bucket is None else Kind.VALUE
    return Difference(key, kind, bucket.revision if bucket else 0, fold.revision if fold else 0)
