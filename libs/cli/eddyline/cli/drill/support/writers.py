"""Writers that know what was acknowledged: of a topic by append and by stream, of a bucket by put and delete.

Each record carries its writer's name and number, so that loss, repeats and disorder are all seen. A write whose outcome is
unknown is repeated with its idempotency key (topic), or remembered as possible (bucket, which has no such keys).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import Code, EddylineError, NatsUnreachable
from eddyline.core.records.record import Record
from eddyline.core.runtime.clock import sleep

if TYPE_CHECKING:
    import asyncio
    import random

    from eddyline.cli.nats.bucket import Bucket
    from eddyline.client.append.gathered_call import Acknowledgement
    from eddyline.client.connect import Client
    from eddyline.core.runtime.clock import Clock

BATCH_RECORDS: Final = 5
PACE_S: Final = 0.01
"""A hundred writes a second a writer: load enough for a kill to hit something, and cores left for the cluster."""
PATIENCE_S: Final = 90.0
KEYS: Final = 200
"""A key comes again after 200 writes: 64 revisions of it last 12 800 writes, longer than any outage here."""
FAST_WRITERS: Final = 4
"""Lanes that together write as fast as one connection does, some 5 000 puts a second."""
FAST_KEYS: Final = 1_000
"""Of each lane: 64 revisions of them all are 256 000 writes, longer than a drill takes."""


class AppendWriter:
    """Appends to a topic, one append after the other, each repeated until it is acknowledged."""

    def __init__(self, name: str, topic: str, *, clock: Clock) -> None:
        self.name = name
        self.acknowledged = 0
        """Records 0 to this (exclusive) were acknowledged."""
        self._topic = topic
        self._clock = clock

    async def run(self, client: Client, stop: asyncio.Event) -> None:
        """Write until told to stop. An append under way is finished."""
        while not stop.is_set():
            first = self.acknowledged
            records = [numbered_record(self.name, first + offset) for offset in range(BATCH_RECORDS)]
            key = f"{self.name}-{first}"
            await client.append(self._topic, records, idempotency_key=key, timeout_s=PATIENCE_S)
            self.acknowledged += BATCH_RECORDS
            await sleep(self._clock, PACE_S)


class StreamWriter:
    """Appends to a topic through streams, many in flight; a new stream first repeats what was not acknowledged."""

    def __init__(self, name: str, topic: str, *, clock: Clock) -> None:
        self.name = name
        self.acknowledged = 0
        self._topic = topic
        self._clock = clock
        self._sent = 0

    async def run(self, client: Client, stop: asyncio.Event) -> None:
        """Write until told to stop and everything sent is acknowledged."""
        deadline_s = self._clock.monotonic_s() + PATIENCE_S
        while not (stop.is_set() and self.acknowledged == self._sent):
            try:
                await self._stream(client, stop)
                deadline_s = self._clock.monotonic_s() + PATIENCE_S
            except EddylineError as error:
                if error.code is not Code.UNAVAILABLE or self._clock.monotonic_s() > deadline_s:
                    raise
                await sleep(self._clock, 0.2)

    async def _stream(self, client: Client, stop: asyncio.Event) -> None:
        waiting: deque[Acknowledgement] = deque()
        async with client.append_stream(self._topic) as stream:
            try:
                number = self.acknowledged
                while number < self._sent or not stop.is_set():
                    record = numbered_record(self.name, number)
                    waiting.append(await stream.append([record], idempotency_key=f"{self.name}-{number}"))
                    number += 1
                    self._sent = max(self._sent, number)
                    if len(waiting) >= 8:
                        await waiting.popleft()
                        self.acknowledged += 1
                    await sleep(self._clock, PACE_S)
                while waiting:
                    await waiting.popleft()
                    self.acknowledged += 1
            finally:
                # Answers that were read on the way to a failure count: they were acknowledged.
                self.acknowledged += sum(1 for acknowledgement in waiting if acknowledgement.result is not None)


class Put(NamedTuple):
    """One write to a bucket; value None = a delete."""

    key: str
    value: bytes | None


class BucketWriter:
    """Puts and deletes keys of a bucket, one after the other."""

    def __init__(self, name: str, bucket: Bucket, *, clock: Clock, random_source: random.Random) -> None:
        self.acknowledged: dict[int, Put] = {}
        """By revision."""
        self.unknown: set[Put] = set()
        """Not acknowledged, perhaps stored."""
        self._name = name
        self._bucket = bucket
        self._clock = clock
        self._random = random_source

    async def run(self, stop: asyncio.Event) -> None:
        """Write until told to stop."""
        number = 0
        while not stop.is_set():
            number += 1
            await self.write(f"{self._name}.{self._random.randrange(KEYS)}", number)
            await sleep(self._clock, PACE_S)

    async def run_fast(self, lane: int, stop: asyncio.Event) -> None:
        """Write without a pause until told to stop, to keys of this lane's own."""
        number = 0
        while not stop.is_set():
            number += 1
            await self.write(f"{self._name}.{lane}.{number % FAST_KEYS}", number)

    async def write(self, key: str, number: int) -> None:
        """One write: mostly a put, now and then a delete, or a put of nothing, which is a live value."""
        choice = self._random.random()
        value = None if choice < 0.05 else b"" if choice < 0.07 else f"{self._name}:{number}".encode()
        put = Put(key, value)
        try:
            revision = await (self._bucket.delete(key) if value is None else self._bucket.put(key, value))
        except NatsUnreachable:
            self.unknown.add(put)
            await sleep(self._clock, 0.1)
        else:
            self.acknowledged[revision] = put


def numbered_record(writer: str, number: int) -> Record:
    """A record that says who wrote it and which it is."""
    return Record(data=f"{writer}:{number}".encode(), tag=writer)
