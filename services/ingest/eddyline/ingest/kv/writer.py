"""Writes into NATS KV buckets with NATS's own compare-and-set, and the wait until the store has applied them.

    put      value
    create   value, `Nats-ExpectedFile-Last-Subject-Sequence: 0`; over a marker again with the marker's revision
    update   value, `Nats-ExpectedFile-Last-Subject-Sequence: <expected>`
    delete   `KV-Operation: DEL`
    purge    `KV-Operation: PURGE`, `Nats-Rollup: sub`

I1: a wait that cannot succeed is refused before the write.
I2: after an error nothing is written, except for `WriteUnknown` and `ApplyPending`, which say so.
I3: writes, their bytes and waits are bounded; a call above a bound is refused, not queued.

A traced write has its caller's `traceparent` as a header, which the source that copies it reads. If the value leaves no
room for the header the write goes without, since no trace may fail a write.

Each write reads the bucket's stream first: a revision means nothing without the identity of its stream, and a bucket may
be recreated at any time. It costs one more round trip.
Source: NATS ADR-8 (keys, operations), ADR-43 and ADR-48 (time to live, markers).
Threading: event loop.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import (
    ApplyPending,
    EddylineError,
    InvalidArgument,
    KeyExists,
    KeyInvalid,
    NatsUnreachable,
    RevisionMismatch,
    Throttled,
    ValueTooLarge,
)
from eddyline.core.records.meta import encode_meta
from eddyline.core.records.record import KEY_BYTES_MAX, SOURCE_DATA_META_BYTES_MAX, MetaEntry, Op
from eddyline.core.telemetry.trace_context import TRACEPARENT
from eddyline.ingest.copy.decode import TooLarge, parse_headers
from eddyline.ingest.kv.applied import AppliedWaiter, WrittenRevision
from eddyline.ingest.kv.publish import Publisher, WrongLast
from eddyline.ingest.nats.stream import BUCKET_PATTERN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from random import Random

    from eddyline.core.runtime.clock import Clock
    from eddyline.core.store_link.protocol import StoreLink
    from eddyline.ingest.nats.bucket import BucketInfo
    from eddyline.ingest.nats.connection import Connection
    from eddyline.ingest.nats.jetstream import JetStream

WRITE_S_MAX: Final = 5.0
"""Default in nats.go: 5 s too; a leader election takes up to 4 s. After it the outcome is unknown."""
CREATE_TRIES: Final = 8
"""Each lost to another writer that wrote and deleted the key meanwhile."""
WRITES_MAX: Final = 1_024
WRITE_BYTES_MAX: Final = 64 << 20
"""Values in flight: eight of the largest, and as much again while they are sent."""
WAITS_MAX: Final = 4_096
RETRY_AFTER_MS: Final = 100
TTL_MS_MIN: Final = 1_000
TTL_MS_MAX: Final = 100 * 365 * 86_400 * 1_000
"""A hundred years: the server counts nanoseconds since 1970 in 63 bits."""

_KEY: Final = re.compile(rb"[-_=/a-zA-Z0-9]+(?:\.[-_=/a-zA-Z0-9]+)*")
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_STREAM: Final = "Nats-Expected-Stream"
_OPERATION: Final = "KV-Operation"
_ROLLUP: Final = "Nats-Rollup"
_TTL: Final = "Nats-TTL"


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Parameters of every write: its place, and whether to wait for the store. `source` empty = all that copy the bucket.

    `timeout_s` = bound of the whole call. `on_written` is awaited with the revision, after NATS stored the write and
    before the wait for the store; not if nothing was written. `traceparent` = the caller's trace context; "" = none.
    """

    bucket: str
    key: bytes
    timeout_s: float
    wait: bool = False
    source: str = ""
    on_written: Callable[[int], Awaitable[None]] | None = None
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class WrittenEntry:
    """A write stored by NATS. `stream_identity` empty = the bucket was recreated meanwhile; `applied` = sources that have
    applied it."""

    revision: int
    stream_identity: bytes
    applied: tuple[str, ...]


class KvWriter:
    """Writes for any number of callers concurrently."""

    def __init__(
        self, link: StoreLink, connection: Connection, jetstream: JetStream, *, clock: Clock, rng: Random
    ) -> None:
        self._jetstream = jetstream
        self._publisher = Publisher(connection, jetstream)
        self._applied = AppliedWaiter(link, clock=clock, rng=rng)
        self._clock = clock
        self._writes = _Budget("writes", WRITES_MAX)
        self._bytes = _Budget("bytes of values", WRITE_BYTES_MAX)
        self._waits = _Budget("waits for the store", WAITS_MAX)

    async def put(self, target: WriteTarget, value: bytes) -> WrittenEntry:
        """Write a value.

        Raises:
            InvalidArgument, KeyInvalid, ValueTooLarge, BucketNotFound, BucketFull, BucketForbids, Throttled,
                NatsUnreachable: nothing was written. As `AppliedWaiter.sources_of`, likewise. WriteUnknown, ApplyPending.
        """
        return await self._write(_Write(target, value))

    async def create(self, target: WriteTarget, value: bytes, *, ttl_ms: int = 0) -> WrittenEntry:
        """Write a value if the key is not live; `ttl_ms` 0 = no expiry.

        Raises:
            As `put`; KeyExists, RevisionMismatch (other writers were faster at every try).
        """
        return await self._write(_Write(target, value, creates=True, ttl_ms=ttl_ms))

    async def update(self, target: WriteTarget, value: bytes, *, expected_revision: int) -> WrittenEntry:
        """Write a value if the key's last revision is the expected one.

        Raises:
            As `put`; RevisionMismatch.
        """
        if expected_revision < 1:
            raise InvalidArgument(
                "expected_revision must be at least 1; CreateEntry creates a key", field="expected_revision"
            )
        return await self._write(_Write(target, value, expected_revision=expected_revision))

    async def delete(self, target: WriteTarget, *, expected_revision: int = 0) -> WrittenEntry:
        """Write a delete marker; `expected_revision` 0 = unchecked.

        Raises:
            As `put`; RevisionMismatch.
        """
        return await self._write(_Write(target, b"", operation="DEL", expected_revision=expected_revision))

    async def purge(self, target: WriteTarget, *, expected_revision: int = 0, ttl_ms: int = 0) -> WrittenEntry:
        """Write a purge marker, which removes the key's older revisions; `ttl_ms` is the marker's, 0 = no expiry.

        Raises:
            As `put`; RevisionMismatch.
        """
        return await self._write(
            _Write(target, b"", operation="PURGE", expected_revision=expected_revision, ttl_ms=ttl_ms)
        )

    async def _write(self, write: _Write) -> WrittenEntry:
        target = write.target
        until_s = self._clock.monotonic_s() + target.timeout_s
        write.check()
        with self._waits.reserve(1 if target.wait else 0):
            sources: tuple[str, ...] = ()
            if target.wait:
                sources = await self._applied.sources_of(
                    target.bucket, target.key, target.source, timeout_s=target.timeout_s
                )
            with self._writes.reserve(1), self._bytes.reserve(len(write.value)):
                bucket, revision = await self._store(write, until_s)
                if target.wait and target.on_written is not None:
                    await target.on_written(revision)
                created_ns = await self._created_ns(bucket, revision)
            if sources and not created_ns:
                raise ApplyPending(
                    f"written at revision {revision} into bucket {target.bucket}, which was recreated during the call",
                    bucket=target.bucket,
                    revision=revision,
                )
            # NATS's time when it returned the bucket: the write came later.
            written = WrittenRevision(created_ns, revision, bucket.stream.server_ns)
            for source in sources:
                await self._applied.wait(source, written, bucket=target.bucket, until_s=until_s)
        identity = created_ns.to_bytes(8, "little", signed=True) if created_ns else b""
        return WrittenEntry(revision, identity, sources)

    async def _store(self, write: _Write, until_s: float) -> tuple[BucketInfo, int]:
        bucket = await self._jetstream.bucket(write.target.bucket, timeout_s=self._left_s(until_s))
        bucket.check_takes(ttl=write.ttl_ms > 0, rollup=write.operation == "PURGE")
        expected = last = write.expected_revision
        for _ in range(CREATE_TRIES if write.creates else 1):
            headers = self._with_trace(bucket, write, write.headers(bucket.stream.name, expected))
            subject = bucket.stream.prefix.decode() + write.target.key.decode()
            try:
                revision = await self._publisher.publish(
                    bucket, subject, write.value, headers, timeout_s=self._left_s(until_s)
                )
                return bucket, revision
            except WrongLast as wrong:
                last_seen = wrong.revision
            if write.creates or last_seen is None:
                last = await self._last_revision(bucket, subject, write)
            else:
                last = last_seen
            if write.creates:
                expected = last
        raise RevisionMismatch(
            f"the last revision of key {_key_text(write.target.key)} of bucket {write.target.bucket} is {last}",
            bucket=write.target.bucket,
            key=write.target.key.hex(),
            revision=last,
        )

    def _with_trace(self, bucket: BucketInfo, write: _Write, headers: dict[str, str]) -> dict[str, str]:
        """Add the caller's trace context, if a record and the bucket have room for it."""
        if not (traceparent := write.target.traceparent):
            return headers
        meta = encode_meta([MetaEntry(TRACEPARENT, traceparent.encode())])
        traced = {**headers, TRACEPARENT: traceparent}
        fits = len(write.value) + len(meta) <= SOURCE_DATA_META_BYTES_MAX
        return traced if fits and self._publisher.fits(bucket, write.value, traced) else headers

    async def _last_revision(self, bucket: BucketInfo, subject: str, write: _Write) -> int:
        """Revision of the key's last message, 0 = none. Raises KeyExists if it is a value and `write` a create."""
        message = await self._jetstream.last_message(bucket.stream, subject)
        if message is None:
            return 0
        revision = message["seq"]
        if write.creates and _is_live(message["headers"]):
            raise KeyExists(
                f"key {_key_text(write.target.key)} of bucket {write.target.bucket} is live at revision {revision}",
                bucket=write.target.bucket,
                key=write.target.key.hex(),
                revision=revision,
            )
        return revision

    async def _created_ns(self, bucket: BucketInfo, revision: int) -> int:
        """Creation time of the stream that stored `revision`; 0 = no longer known."""
        if revision > bucket.stream.last_revision:
            return bucket.stream.created_ns
        # Revisions only grow: the stream that stored the write is a younger one.
        try:
            return (await self._jetstream.stream(bucket.stream.bucket)).created_ns
        except EddylineError:
            return 0

    def _left_s(self, until_s: float) -> float:
        left_s = until_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise NatsUnreachable("the call's deadline passed before the write was sent to NATS; nothing was written")
        return min(left_s, WRITE_S_MAX)


@dataclass(frozen=True, slots=True)
class _Write:
    """One write. `expected_revision` 0 = unchecked; for a create, that the key has no message."""

    target: WriteTarget
    value: bytes
    operation: str = ""
    expected_revision: int = 0
    creates: bool = False
    ttl_ms: int = 0

    def check(self) -> None:
        """Refuse a write that no bucket accepts.

        Raises:
            InvalidArgument, KeyInvalid, ValueTooLarge.
        """
        bucket, key = self.target.bucket, self.target.key
        if not BUCKET_PATTERN.fullmatch(bucket):
            bucket_text = bucket if len(bucket) <= 300 else bucket[:300] + "…"
            raise InvalidArgument(f"{bucket_text!r} is not a valid bucket name", field="bucket", bucket=bucket_text)
        if len(key) > KEY_BYTES_MAX or not _KEY.fullmatch(key):
            raise KeyInvalid(
                f"{_key_text(key)} is not a valid key: letters, digits and -_=./, no dot at an end, no two in a row, "
                f"1 to {KEY_BYTES_MAX} bytes",
                field="key",
                key=key[:KEY_BYTES_MAX].hex(),
            )
        if len(self.value) > SOURCE_DATA_META_BYTES_MAX:
            raise ValueTooLarge(
                f"a value of {len(self.value)} bytes; the maximum is {SOURCE_DATA_META_BYTES_MAX}",
                valueBytes=len(self.value),
                valueBytesMax=SOURCE_DATA_META_BYTES_MAX,
                setBy="record",
            )
        if self.ttl_ms and not TTL_MS_MIN <= self.ttl_ms <= TTL_MS_MAX:
            raise InvalidArgument(
                f"ttl_ms must be 0 or {TTL_MS_MIN} to {TTL_MS_MAX}, not {self.ttl_ms}",
                field="ttl_ms",
                limitMs=TTL_MS_MIN if self.ttl_ms < TTL_MS_MIN else TTL_MS_MAX,
            )
        if self.target.source and not self.target.wait:
            raise InvalidArgument("source is set without wait_applied; set both", field="source")

    def headers(self, stream: str, expected: int) -> dict[str, str]:
        """Headers of the message; the stream's name keeps it out of another stream that has taken over the subjects."""
        headers = {_STREAM: stream}
        if self.operation:
            headers[_OPERATION] = self.operation
        if self.operation == "PURGE":
            headers[_ROLLUP] = "sub"
        if expected or self.creates:
            headers[_EXPECTED] = str(expected)
        if self.ttl_ms:
            headers[_TTL] = f"{-(-self.ttl_ms // 1_000)}s"
        return headers


class _Budget:
    """Bounded amount of one resource in use."""

    def __init__(self, unit: str, limit: int) -> None:
        self._unit = unit
        self._limit = limit
        self._taken = 0

    @contextmanager
    def reserve(self, amount: int) -> Iterator[None]:
        """Hold `amount` while the block runs.

        Raises:
            Throttled: the bound is reached.
        """
        if self._taken + amount > self._limit:
            raise Throttled(
                f"{self._taken} {self._unit} in progress, the maximum is {self._limit}; nothing was written",
                retryAfterMs=RETRY_AFTER_MS,
            )
        self._taken += amount
        try:
            yield
        finally:
            self._taken -= amount


def _is_live(headers: bytes) -> bool:
    try:
        return parse_headers(headers).op == Op.PUT
    except TooLarge:
        return True  # markers have no headers of their users


def _key_text(key: bytes) -> str:
    return repr(key[:64])[1:] + ("…" if len(key) > 64 else "")
