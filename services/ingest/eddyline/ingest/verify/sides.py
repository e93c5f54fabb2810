"""The two sides of a comparison: a source's bucket, and its fold.

A consumer brings the bucket's newest message of every key, one range scan the fold, each piece by piece and without
holding more than a piece; single keys are read on either side. A message that no record can hold is read like any other:
its key is missing in the fold, or has an older value there. Values are compared by hash, and not by revision: a recreated
bucket has revisions of its own.
Failure: a bucket that cannot be read to its end is `NatsUnreachable`. Closing a reader deletes its consumer, or ends the
scan.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from xxhash import xxh3_128_digest

from eddyline.core.errors import InvalidArgument, NatsUnreachable
from eddyline.core.records.cells import cells_of
from eddyline.core.records.record import KEY_BYTES_MAX, Op
from eddyline.ingest.copy.consumer import Consumer, ConsumerLost
from eddyline.ingest.copy.decode import TooLarge, check_fits, parse_headers
from eddyline.ingest.copy.filter import Filter
from eddyline.ingest.copy.position import decode_position, revision_of
from eddyline.ingest.nats.jetstream import nameable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from eddyline.core.model.read import RangePage
    from eddyline.core.model.source import SourceDefinition
    from eddyline.core.records.batch import Batch
    from eddyline.core.records.record import Record
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.copy.batch import Chunk
    from eddyline.ingest.nats.connection import Connection
    from eddyline.ingest.nats.jetstream import JetStream
    from eddyline.ingest.nats.stream import Stream

KEYS_AT_ONCE: Final = 64
"""Requests in flight to the server; 64 hide the round trip, more would queue there."""


class LiveValue:
    """A live key's revision and the hash of its value; equal if the hashes are."""

    __slots__ = ("revision", "value")

    def __init__(self, revision: int, value: bytes) -> None:
        self.revision = revision
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LiveValue) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


class NewestMessage(NamedTuple):
    """A key's newest message: its revision (0 = none), the live value it leaves, and whether no record can hold it."""

    revision: int
    live: LiveValue | None
    is_unfit: bool = False


class Sides:
    """Both sides of one source. `name` = prefix of its consumers' names, unique."""

    def __init__(
        self,
        definition: SourceDefinition,
        stream: Stream,
        *,
        name: str,
        link: StoreLink,
        connection: Connection,
        jetstream: JetStream,
        clock: Clock,
    ) -> None:
        self._definition = definition
        self._stream = stream
        self._name = name
        self._link = link
        self._connection = connection
        self._jetstream = jetstream
        self._clock = clock
        self._filter = Filter(definition)
        self._readings = 0

    @property
    def sets_aside(self) -> bool:
        """True = messages that fit into no record become dead letters."""
        return bool(self._definition.dead_letter_topic)

    async def position_revision(self) -> int:
        """Revision up to which everything is applied now."""
        return revision_of(decode_position((await self._link.get_source(self._definition.name)).position))

    async def bucket(self) -> AsyncGenerator[Chunk, None]:
        """The newest message of every key that the source copies, as of the moment of the call or later.

        Raises:
            BucketNotFound, NatsUnreachable.
        """
        stream = self._stream
        if stream.last_revision == 0:
            return
        self._readings += 1
        consumer = Consumer(
            self._connection,
            self._jetstream,
            stream,
            name=f"{self._name}-{self._readings}",
            start_revision=1,
            start_ns=0,
            clock=self._clock,
            metadata={"eddyline_compare": stream.bucket},
            on_lost=lambda _reason: None,
            policy="last_per_subject",
            key_filter=self._filter,
            unfit_policy="TAKE",
        )
        try:
            async with consumer:
                reached = 0
                while reached < stream.last_revision and not consumer.drained:
                    chunk = await consumer.next_chunk()
                    if chunk is None:
                        break
                    reached = chunk.last_revision
                    yield chunk
        except ConsumerLost as lost:
            raise NatsUnreachable(f"{stream.origin} cannot be read: {lost}") from lost

    async def fold(self) -> AsyncGenerator[Batch, None]:
        """Every live key of the fold at one point.

        Raises:
            Errors of the store's reads.
        """
        # Both links return generators: closing this one ends the scan at once, not at its garbage collection.
        pages = cast("AsyncGenerator[RangePage, None]", self._link.range_entries(self._definition.topic))
        async with aclosing(pages):
            async for page in pages:
                if page.batch is not None:
                    yield page.batch

    async def newest(self, keys: Sequence[bytes]) -> list[NewestMessage | None]:
        """The newest message of each key, at most `KEYS_AT_ONCE`; None = the API cannot name the key.

        Raises:
            NatsUnreachable.
        """

        async def look_up(key: bytes) -> NewestMessage | None:
            subject = self._stream.prefix + key
            if not nameable(subject):
                return None
            message = await self._jetstream.last_message(self._stream, subject.decode())
            if message is None or not self._filter.matches(key):
                return NewestMessage(0, None)
            revision, headers, data = message["seq"], message["headers"], message["data"]
            live = live_message(_op_of(headers), revision, data)
            return NewestMessage(revision, live, _is_unfit(key, headers, data))

        try:
            async with asyncio.TaskGroup() as group:
                lookups = [group.create_task(look_up(key)) for key in keys]
        except* NatsUnreachable as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in lookups]

    async def entries(self, keys: Sequence[bytes]) -> dict[bytes, LiveValue]:
        """The fold's entries of those keys that are live there.

        Raises:
            Errors of the store's reads.
        """
        storable = [key for key in keys if len(key) <= KEY_BYTES_MAX]  # a fold has no longer one
        if not storable:
            return {}
        try:
            page = await self._link.batch_get_entries(self._definition.topic, storable)
        except InvalidArgument:
            if len(storable) == 1:
                raise
            half = len(storable) // 2  # they do not fit into one answer
            return await self.entries(storable[:half]) | await self.entries(storable[half:])
        return {key: live_entry(entry) for key, entry in zip(storable, page.entries, strict=True) if entry is not None}


def live_message(op: int, revision: int, data: bytes) -> LiveValue | None:
    """The live value that a message leaves."""
    return LiveValue(revision, xxh3_128_digest(data)) if op == Op.PUT else None


def live_entry(entry: Record) -> LiveValue:
    """The live value of a fold entry."""
    return LiveValue(int.from_bytes(entry.version, "big"), xxh3_128_digest(entry.data or b""))


def keys_and_values(batch: Batch) -> tuple[list[bytes], list[bytes]]:
    """Keys and values of the fold's entries; an absent value is an empty one."""
    keys = [key or b"" for key in batch.keys()]  # noqa: SIM118 - a batch is no mapping
    values = [b""] * batch.count if batch.data is None else [cell or b"" for cell in cells_of(batch.data, batch.count)]
    return keys, values


def _is_unfit(key: bytes, headers: bytes, data: bytes) -> bool:
    try:
        check_fits(key, data, parse_headers(headers).meta)
    except TooLarge:
        return True
    return False


def _op_of(headers: bytes) -> int:
    try:
        return parse_headers(headers).op
    except TooLarge:
        return Op.PUT  # no record can hold it, so the fold cannot have it
