"""KV buckets for the demo and the drills: pipelined loads, single puts whose outcome is known or said to be unknown.

Failure: whatever nats-py raises becomes `NatsUnreachable`; a put that was not acknowledged may still have been stored.
Not promised: order between puts that are in flight together.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import nats
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, DiscardPolicy

from eddyline.cli.nats.cluster import is_whole, stream_leader
from eddyline.cli.nats.failures import NATS_FAILURES
from eddyline.core.errors import BucketNotFound, EddylineError, NatsUnreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from nats.aio.client import Client as NatsConnection
    from nats.js import JetStreamContext
    from nats.js.kv import KeyValue

HISTORY: Final = 64
"""The most that NATS keeps of a key: full history for as long as we are away."""
PUT_TIMEOUT_S: Final = 2.0
IN_FLIGHT_MAX: Final = 1_000
"""nats-py allows 4 000 by itself; 1 000 fill the wire and are repeated soon when the server dies."""
FETCH_MAX: Final = 1_000
LOAD_TIMEOUT_S: Final = 60.0
RECONNECT_S: Final = 0.2
FIRST_ATTEMPTS: Final = 3
CONNECT_S: Final = 2.0


class Bucket:
    """One KV bucket."""

    def __init__(self, name: str, jetstream: JetStreamContext, key_value: KeyValue) -> None:
        self.name = name
        self._jetstream = jetstream
        self._key_value = key_value

    async def put(self, key: str, value: bytes) -> int:
        """Put a key; its revision.

        Raises:
            NatsUnreachable: not acknowledged; it may have been stored.
        """
        try:
            acknowledged = await self._jetstream.publish(f"$KV.{self.name}.{key}", value, timeout=PUT_TIMEOUT_S)
        except NATS_FAILURES as error:
            raise _unreachable(error) from None
        return int(acknowledged.seq)

    async def delete(self, key: str) -> int:
        """Delete a key; the marker's revision.

        Raises:
            NatsUnreachable: not acknowledged; it may have been stored.
        """
        try:
            acknowledged = await self._jetstream.publish(
                f"$KV.{self.name}.{key}", b"", timeout=PUT_TIMEOUT_S, headers={"KV-Operation": "DEL"}
            )
        except NATS_FAILURES as error:
            raise _unreachable(error) from None
        return int(acknowledged.seq)

    async def put_all(self, values: Mapping[str, bytes]) -> int:
        """Put many keys, a bounded number in flight; how many were put, which is all.

        Raises:
            NatsUnreachable: not all were acknowledged.
        """
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                waiting = [
                    await self._jetstream.publish_async(f"$KV.{self.name}.{key}", value)
                    for key, value in values.items()
                ]
                for acknowledged in waiting:
                    await acknowledged
        except NATS_FAILURES as error:
            raise _unreachable(error) from None
        return len(waiting)

    async def live_values(self) -> dict[str, bytes]:
        """Every live key with its value.

        Raises:
            NatsUnreachable: the server went away.
        """
        found: dict[str, bytes] = {}
        prefix = f"$KV.{self.name}."
        try:
            # Not by a watcher: nats-py's says "that was all" where what is on its way was not yet read.
            reading = await self._jetstream.pull_subscribe(
                f"{prefix}>",
                stream=f"KV_{self.name}",
                config=ConsumerConfig(deliver_policy=DeliverPolicy.LAST_PER_SUBJECT, ack_policy=AckPolicy.NONE),
            )
            try:
                consumer = await reading.consumer_info()
                pending = consumer.num_pending or 0
                while pending:
                    for message in await reading.fetch(min(pending, FETCH_MAX), timeout=PUT_TIMEOUT_S):
                        key, headers = message.subject.removeprefix(prefix), message.headers or {}
                        if headers.keys() & {"KV-Operation", "Nats-Marker-Reason"}:
                            found.pop(key, None)
                        else:
                            found[key] = message.data
                        pending = message.metadata.num_pending
                await self._jetstream.delete_consumer(f"KV_{self.name}", consumer.name)
            finally:
                await reading.unsubscribe()
        except NATS_FAILURES as error:
            raise _unreachable(error) from None
        return found

    async def last_revision(self) -> int:
        """The newest revision of the bucket.

        Raises:
            NatsUnreachable: the server went away.
        """
        try:
            return int((await self._jetstream.stream_info(f"KV_{self.name}")).state.last_seq)
        except NATS_FAILURES as error:
            raise _unreachable(error) from None

    async def first_revision(self) -> int:
        """The oldest revision that the bucket still has.

        Raises:
            NatsUnreachable: the server went away.
        """
        try:
            return int((await self._jetstream.stream_info(f"KV_{self.name}")).state.first_seq)
        except NATS_FAILURES as error:
            raise _unreachable(error) from None

    async def purge(self, *, below_revision: int) -> None:
        """Let the bucket forget every revision below this one, without a word to who reads it.

        Raises:
            NatsUnreachable: not acknowledged; it may have been done.
        """
        try:
            await self._jetstream.purge_stream(f"KV_{self.name}", seq=below_revision)
        except NATS_FAILURES as error:
            raise _unreachable(error) from None

    async def limit(self, messages: int) -> None:
        """Keep so many messages at most, the newest, and let go of the others; 0 = as many as come, as buckets do.

        Raises:
            NatsUnreachable: not acknowledged; it may have been done.
        """
        discard = DiscardPolicy.OLD if messages else DiscardPolicy.NEW
        try:
            config = (await self._jetstream.stream_info(f"KV_{self.name}")).config
            await self._jetstream.update_stream(config.evolve(max_msgs=messages or -1, discard=discard))
        except NATS_FAILURES as error:
            raise _unreachable(error) from None

    async def make_anew(self) -> None:
        """Delete the bucket, and make an empty one of its name.

        Raises:
            NatsUnreachable: not acknowledged; it may have been done.
        """
        try:
            await self._jetstream.delete_key_value(self.name)
            self._key_value = await self._jetstream.create_key_value(bucket=self.name, history=HISTORY)
        except NATS_FAILURES as error:
            raise _unreachable(error) from None

    async def consumer_names(self) -> list[str]:
        """Consumers of the bucket's stream.

        Raises:
            NatsUnreachable: the server went away.
        """
        try:
            return sorted(str(info.name) for info in await self._jetstream.consumers_info(f"KV_{self.name}"))
        except NATS_FAILURES as error:
            raise _unreachable(error) from None

    async def leader(self) -> str:
        """Name of the server that leads the bucket's stream; "" = none does now, or NATS does not answer."""
        return await stream_leader(self._jetstream, f"KV_{self.name}")

    async def is_whole(self) -> bool:
        """Whether every server of a cluster of `SIZE` has all of the bucket, and the leader says so."""
        return await is_whole(self._jetstream, f"KV_{self.name}")

    async def has_revision(self, revision: int) -> bool:
        """Whether the bucket still has this revision.

        Raises:
            NatsUnreachable: the server went away.
        """
        try:
            await self._jetstream.get_msg(f"KV_{self.name}", seq=revision)
        except nats.js.errors.NotFoundError:
            return False
        except NATS_FAILURES as error:
            raise _unreachable(error) from None
        return True


@asynccontextmanager
async def nats_connection(url: str) -> AsyncIterator[NatsConnection]:
    """Connect, and reconnect for ever; leaving it closes. `url`: several with commas are servers of one cluster.

    Raises:
        NatsUnreachable: the first connection failed.
    """
    try:
        connection = await nats.connect(
            url.split(","),
            error_cb=_say_nothing,
            max_reconnect_attempts=FIRST_ATTEMPTS,
            reconnect_time_wait=RECONNECT_S,
        )
    except NATS_FAILURES as error:
        raise _unreachable(error) from None
    # Only now: nats-py would take "for ever" for the first connection too.
    connection.options["max_reconnect_attempts"] = -1
    try:
        yield connection
    finally:
        await connection.close()


async def open_bucket(connection: NatsConnection, name: str, *, create: bool = True, replicas: int = 1) -> Bucket:
    """Open a bucket, made with full history and so many replicas if it is missing.

    Raises:
        BucketNotFound: missing, and not to be made. NatsUnreachable.
    """
    jetstream = connection.jetstream(timeout=PUT_TIMEOUT_S, publish_async_max_pending=IN_FLIGHT_MAX)
    try:
        try:
            key_value = await jetstream.key_value(name)
        except nats.js.errors.BucketNotFoundError:
            if not create:
                raise BucketNotFound(f"no bucket {name!r} at NATS") from None
            key_value = await jetstream.create_key_value(bucket=name, history=HISTORY, replicas=replicas)
    except NATS_FAILURES as error:
        raise _unreachable(error) from None
    return Bucket(name, jetstream, key_value)


def _unreachable(error: BaseException) -> EddylineError:
    return NatsUnreachable(f"NATS: {error!r}"[:300])


async def _say_nothing(error: Exception) -> None:
    """Every operation says itself what failed."""
