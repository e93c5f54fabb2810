"""A pull consumer with one plain callback: messages in order, from a given revision on, within a bound.

In nats-py the ordered consumer loses messages for good under a slow reader, `fetch` brings 38 k messages/s, and the KV
watcher never ends when its consumer is gone. Here the consumer requests messages (`$JS.API.CONSUMER.MSG.NEXT`) to one
inbox, and detects every way in which they can stop:

* a gap in the consumer's own sequence: messages were lost on the way;
* a missing heartbeat: nothing arrived for two intervals although messages were requested;
* a status of the server (consumer deleted, leader changed, shutting down, no responders);
* a broken connection.

Each of them is `ConsumerLost`. A consumer is never repaired; the next one has another name and starts at the position.

I1: messages requested and not received, and those received and not handed out, are together at most WINDOW_RECORDS; each
pull brings at most PULL_BYTES_MAX more, or one message of any size.
I2: chunks are handed out in order, all of those gathered before a failure, and the failure after them.
I3: no timer a message: one timer watches the heartbeat, and only while messages are requested.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Literal

from nats.errors import Error as NatsError

from eddyline.core.errors import EddylineError, NatsUnreachable
from eddyline.core.model.source import SourceDefinition
from eddyline.core.records.record import KEY_BYTES_MAX, SOURCE_DATA_META_BYTES_MAX
from eddyline.core.telemetry.tracing import NOOP_TRACER
from eddyline.ingest.copy.batch import Gatherer, Jump, UnfitMessage
from eddyline.ingest.copy.decode import (
    EVENT,
    VALUE,
    TooLarge,
    Unreadable,
    check_fits,
    parse_ack,
    parse_event_headers,
    parse_headers,
    parse_status,
)
from eddyline.ingest.copy.filter import Filter
from eddyline.ingest.copy.stopped import SourceStopped, oversize
from eddyline.ingest.copy.trace import trace_message
from eddyline.ingest.nats.cancellation import preserve_cancellation

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from eddyline.core.runtime.clock import Clock, Timer
    from eddyline.core.telemetry.tracing import Tracer
    from eddyline.ingest.copy.batch import Chunk
    from eddyline.ingest.copy.decode import Delivery, StatusMessage
    from eddyline.ingest.nats.connection import Connection, Publishing
    from eddyline.ingest.nats.jetstream import DeliverPolicy, JetStream
    from eddyline.ingest.nats.raw_client import RawSubscription
    from eddyline.ingest.nats.stream import Stream

WINDOW_RECORDS: Final = 16_384
"""Four batches: one in flight to the store, one gathering, two on the way from NATS."""
PULLS_AT_ONCE: Final = 4
"""A pull requests at least this part of the window: a request a message would halve the rate."""
PULL_BYTES_MAX: Final = SOURCE_DATA_META_BYTES_MAX + (1 << 20)
"""The largest record of a source with its subject and header names; a message above it is fetched alone."""
PULL_EXPIRES_S: Final = 30.0
HEARTBEAT_S: Final = 1.0
"""Default in nats.go: 5 s. Two of them missed = lost. Costs one small message a second for each waiting pull."""
DELETE_TIMEOUT_S: Final = 2.0

SHOWN_KEY_BYTES: Final = 64
"""Bytes of a key in a reason, which is cut if it is long; revision and bucket identify the message."""

assert 2 * HEARTBEAT_S <= PULL_EXPIRES_S, "the server refuses more than half"

_HEARTBEAT: Final = 100
_NO_MESSAGES: Final = 404
_TIMED_OUT: Final = 408
_CONFLICT: Final = 409
_SIZE_EXCEEDED: Final = "message size exceeds maxbytes"
_PULL_ENDED: Final = (_SIZE_EXCEEDED, "batch completed")


UnfitPolicy = Literal["STOP", "SET_ASIDE", "TAKE"]
EVERYTHING: Final = Filter(SourceDefinition("", ""))


class ConsumerLost(Exception):
    """The consumer brings no more messages; the text gives the reason."""


class Consumer:
    """One attempt at reading a stream, as `async with`: creates the consumer, and deletes it at the end.

    `on_lost` is called with the reason at the moment of the loss. `start_ns`: no message from `start_revision` on is
    older; 0 = unknown. `key_filter` = messages that are handed out; others only move the position. `unfit_policy` =
    treatment of a message that no record can hold: it stops the source, is set aside in its chunk, or is taken all the
    same (with too many headers as a value).
    """

    def __init__(
        self,
        connection: Connection,
        jetstream: JetStream,
        stream: Stream,
        *,
        name: str,
        start_revision: int,
        start_ns: int,
        clock: Clock,
        metadata: dict[str, str],
        on_lost: Callable[[str], None],
        policy: DeliverPolicy = "by_start_sequence",
        heartbeat_s: float = HEARTBEAT_S,
        pull_bytes_max: int = PULL_BYTES_MAX,
        key_filter: Filter = EVERYTHING,
        unfit_policy: UnfitPolicy = "STOP",
        tracer: Tracer = NOOP_TRACER,
    ) -> None:
        assert start_revision > 0
        self._connection = connection
        self._jetstream = jetstream
        self._stream = stream
        self._name = name
        self._start_revision = start_revision
        self._clock = clock
        self._metadata = metadata
        self._on_lost = on_lost
        self._policy: DeliverPolicy = policy
        self._heartbeat_s = heartbeat_s
        self._pull_bytes_max = pull_bytes_max
        self._prefix = stream.prefix
        self._key_filter = key_filter
        self._unfit_policy: UnfitPolicy = unfit_policy
        self._tracer = tracer
        self._next_subject = f"{jetstream.prefix}.CONSUMER.MSG.NEXT.{stream.name}.{name}"
        self._lost = connection.lost
        self._window = self._batch_max = WINDOW_RECORDS
        self._exit_stack = ExitStack()
        self._next: Publishing | None = None
        self._inbox = ""
        self._subscription: RawSubscription | None = None
        self._watch: Timer | None = None
        self._gathered = Gatherer()
        self._wake = asyncio.Event()
        self._failure: Exception | None = None
        self._requested = 0
        self._fetch_single = False
        self._woken = False
        self._pulls = 0
        self._silent_beats = 0
        self._consumer_seq = 0
        self._revision = start_revision - 1
        self._time_ns = start_ns
        self.pending = 0
        """Messages behind the newest one received, as the server counted them when it sent that one."""

    @property
    def last_seen_revision(self) -> int:
        """Lower bound of the stream's last revision, from the messages received."""
        return self._revision + self.pending

    @property
    def failed(self) -> bool:
        """True = only chunks gathered before the failure remain."""
        return self._failure is not None

    @property
    def drained(self) -> bool:
        """True = every message received was handed out, and the server had none behind it."""
        return self.pending == 0 and self._gathered.count == 0

    async def __aenter__(self) -> Consumer:
        try:
            await self._subscribe()
            made = await self._jetstream.create_consumer(
                self._stream,
                self._name,
                policy=self._policy,
                start_revision=self._start_revision,
                metadata=self._metadata,
            )
            self.pending = made.pending
            if made.batch_max:
                self._batch_max = made.batch_max
                self._window = min(PULLS_AT_ONCE * made.batch_max, WINDOW_RECORDS)
            self._next = self._exit_stack.enter_context(self._connection.publishing(self._next_subject))
        except BaseException:
            await self._end()
            raise
        self._watch = self._clock.call_later(self._heartbeat_s, self._check_heartbeat)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self._end()

    async def _subscribe(self) -> None:
        try:
            client = self._connection.client
            self._lost = self._connection.lost
            self._inbox = client.new_inbox()
            with preserve_cancellation():
                self._subscription = await client.subscribe_raw(f"{self._inbox}.*", self._receive)
        except (NatsError, OSError) as error:
            raise NatsUnreachable(f"cannot subscribe at NATS: {error}") from error

    async def next_chunk(self) -> Chunk | None:
        """Wait for the next chunk; None = no message is to come, or `wake` was called.

        No message is to come if the pending ones were removed before the server could send them.

        Raises:
            ConsumerLost. SourceStopped: the next message is larger than a record. NatsUnreachable.
        """
        while True:
            self._wake.clear()
            if self._failure is None:
                await self._pull()
            if self._lost.is_set():
                self._fail(ConsumerLost("the connection to NATS broke"))
            chunk = self._gathered.pop()
            if chunk is not None:
                return chunk
            if self._failure is not None:
                raise self._failure
            if self._woken:
                self._woken = False
                return None
            await self._wake.wait()

    def note_skipped(self, revision: int) -> None:
        """Treat the revisions up to `revision` (inclusive) as reported: they are no jump any more."""
        self._revision = max(self._revision, revision)

    def wake(self) -> None:
        """Make `next_chunk` return None once, if no chunk is ready."""
        self._woken = True
        self._wake.set()

    def break_off(self, reason: str) -> None:
        """Fail with `reason`: the gathered chunks are still handed out, then ConsumerLost."""
        self._fail(ConsumerLost(reason))

    # asking ------------------------------------------------------------------------------------------------------

    async def _pull(self) -> None:
        room = self._window - self._requested - self._gathered.count
        request: dict[str, int]
        if self._fetch_single:
            if self._requested:
                return
            request = {"batch": 1}
        elif room >= self._window // PULLS_AT_ONCE:
            request = {"batch": min(room, self._batch_max), "max_bytes": self._pull_bytes_max}
        else:
            return
        self._requested += request["batch"]
        self._pulls += 1
        request["expires"] = int(PULL_EXPIRES_S * 1e9)
        request["idle_heartbeat"] = int(self._heartbeat_s * 1e9)
        try:
            client = self._connection.client
            with preserve_cancellation():
                await client.publish(
                    self._next_subject, json.dumps(request).encode(), reply=f"{self._inbox}.{self._pulls}"
                )
        except (NatsError, OSError, NatsUnreachable) as error:
            self._fail(ConsumerLost(f"cannot request messages from NATS: {error}"))

    # receiving: called by the client for every message, must not raise ------------------------------------------------

    def _receive(self, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self._silent_beats = 0
        if self._failure is not None:
            return
        try:
            if not reply:
                self._status(parse_status(headers))
                return
            delivery = parse_ack(reply)
        except Unreadable as error:
            self._fail(ConsumerLost(str(error)))
            return
        revision, consumer_seq, time_ns, pending = delivery
        if consumer_seq != self._consumer_seq + 1:
            lost = consumer_seq - self._consumer_seq - 1
            self._fail(ConsumerLost(f"{lost} messages were lost between NATS and ingest"))
            return
        self._consumer_seq = consumer_seq
        if self._requested:
            self._requested -= 1
        self._fetch_single = False
        if not subject.startswith(self._prefix):
            # The next attempt's resume check decides what becomes of the source.
            subject_text = subject[:SHOWN_KEY_BYTES].decode(errors="backslashreplace")
            self._fail(
                ConsumerLost(f"revision {revision} of {self._stream.origin} is not a key: subject {subject_text}")
            )
            return
        try:
            chunk, row = self._gather(subject, data, headers, delivery)
        except SourceStopped as stopped:
            self._fail(stopped)
            return
        if self._tracer.is_on:
            trace_message(self._tracer, chunk, headers, revision, self._metadata.get("eddyline_source", ""))
        if revision > self._revision + 1:
            chunk.jumps.append(Jump(row, self._revision, self._time_ns, revision))
        self._revision = revision
        self._time_ns = time_ns
        self.pending = pending
        self._wake.set()

    def _gather(self, subject: bytes, data: bytes, headers: bytes, delivery: Delivery) -> tuple[Chunk, int]:
        """Add a message to its chunk; returns the chunk, and the row of the message or of its successor."""
        key = subject[len(self._prefix) :]
        if not (self._key_filter.matches_all or self._key_filter.matches(key)):
            chunk = self._gathered.skip(subject, data, delivery)
            return chunk, chunk.count
        is_event = not self._stream.bucket
        meaning = EVENT if is_event else VALUE
        if not headers and len(key) <= KEY_BYTES_MAX and len(data) <= SOURCE_DATA_META_BYTES_MAX:
            chunk = self._gathered.add(subject, key, data, meaning, delivery)
            return chunk, len(chunk.revisions) - 1
        try:
            if headers:
                meaning = parse_event_headers(headers) if is_event else parse_headers(headers)
            if self._unfit_policy != "TAKE":
                check_fits(key, data, meaning.meta)
        except TooLarge as error:
            if self._unfit_policy == "STOP":
                subject_text = key[:SHOWN_KEY_BYTES].decode(errors="backslashreplace")
                place = f"key {subject_text}, revision {delivery.revision} of {self._stream.origin}"
                raise oversize(self._metadata.get("eddyline_source", "NAME"), str(error), place) from error
            if self._unfit_policy == "SET_ASIDE":
                chunk = self._gathered.skip(subject, data, delivery, size=len(data))
                placing = chunk.count, subject, data, headers, delivery.revision, delivery.time_ns
                chunk.add_unfit(UnfitMessage(*placing, str(error)))
                return chunk, chunk.count
        chunk = self._gathered.add(subject, key, data, meaning, delivery)
        return chunk, chunk.count - 1

    def _status(self, status: StatusMessage) -> None:
        text = status.text.lower()
        if status.code == _HEARTBEAT:
            if status.last_consumer_seq > self._consumer_seq:
                self._fail(ConsumerLost("messages were lost between NATS and ingest"))
            elif self.pending:
                # The server waits for messages: the pending ones were removed before it could send them.
                self.pending = 0
                self._woken = True
                self._wake.set()
            return
        if status.code in (_NO_MESSAGES, _TIMED_OUT) or (
            status.code == _CONFLICT and any(ended in text for ended in _PULL_ENDED)
        ):
            self._requested = max(self._requested - max(status.pending_messages, 0), 0)
            if _SIZE_EXCEEDED in text and status.pending_bytes == self._pull_bytes_max:
                # No message of the pull fitted: the next one is fetched alone, and its size checked on arrival.
                self._fetch_single = True
            self._wake.set()
            return
        description = status.text or ("no responders" if status.code == 503 else "no reason")
        self._fail(ConsumerLost(f"NATS ended the consumer: {description} ({status.code})"))

    def _check_heartbeat(self) -> None:
        self._silent_beats = self._silent_beats + 1 if self._requested else 0
        if self._next is not None and self._next.denied:
            self._fail(ConsumerLost(self._next.reason()))
            return
        if self._silent_beats > 2:
            self._fail(ConsumerLost(f"no heartbeat from the consumer for {2 * self._heartbeat_s:g} s"))
            return
        if self._lost.is_set():
            self._fail(ConsumerLost("the connection to NATS broke"))
            return
        self._watch = self._clock.call_later(self._heartbeat_s, self._check_heartbeat)

    def _fail(self, failure: Exception) -> None:
        if self._failure is None:
            self._failure = failure
            if isinstance(failure, ConsumerLost):
                self._on_lost(str(failure))
        self._wake.set()

    async def _end(self) -> None:
        self._exit_stack.close()
        if self._subscription is not None:
            await self._subscription.end()
            self._subscription = None
        if not self._connection.connected:
            return  # the server deletes it after its inactive threshold, or the next lease's sweep does
        try:
            async with asyncio.timeout(DELETE_TIMEOUT_S):
                await self._jetstream.delete_consumer(self._stream.name, self._name)
        except (EddylineError, TimeoutError):
            pass  # likewise
