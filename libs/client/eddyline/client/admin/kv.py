"""Writes into NATS KV buckets, through ingest: NATS's own compare-and-set, and waiting until the store has it.

No call is repeated here: where the outcome is unknown (`WriteUnknown`, and `NotReady` of a connection that
broke) only the caller knows what a second write would harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import grpc

from eddyline.client.transport.call import CALL_TIMEOUT_S, call_once, domain_errors, traced
from eddyline.client.transport.checked import check_bytes
from eddyline.core.errors import WriteUnknown
from eddyline.core.transport.metadata import WRITTEN_REVISION
from eddyline.v1 import kv_pb2
from eddyline.v1.kv_pb2_grpc import KvServiceStub

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

    OnWritten = Callable[[int], None]

_SERVICE: Final = kv_pb2.DESCRIPTOR.services_by_name["KvService"].full_name
Answer = TypeVar(
    "Answer",
    kv_pb2.PutEntryResponse,
    kv_pb2.CreateEntryResponse,
    kv_pb2.UpdateEntryResponse,
    kv_pb2.DeleteEntryResponse,
    kv_pb2.PurgeEntryResponse,
)


@dataclass(frozen=True, slots=True)
class KvWriteResult:
    """A write that NATS has. `stream_identity` and `version` are what gaps and records of the topic have of it.

    `applied_sources`: the sources whose topics have it; empty where none was waited for.
    """

    revision: int
    stream_identity: bytes
    version: bytes
    applied_sources: tuple[str, ...]


class _CallOptions(NamedTuple):
    """Options of a write's call, apart from its request."""

    timeout_s: float
    on_written: OnWritten | None
    metadata: tuple[tuple[str, str], ...]


class Kv:
    """The KvService of a cluster. `Client.kv` gives it.

    `wait_applied`: return once every source that copies the bucket (`source`: that one) has applied the write, at most
    to `timeout_s`. Every method raises, as classes of `eddyline.core.errors`: KeyInvalid, BucketNotFound,
    BucketNotCopied, ValueTooLarge, BucketFull, BucketForbids, Throttled, NatsUnreachable (nothing was written);
    WriteUnknown (the outcome is unknown); ApplyPending (written at its `revision`, the wait was too short).
    `on_written` is called with the revision as soon as NATS has a write that is waited for: who cancels the wait behind
    it has nothing to repeat. `traceparent`: the W3C trace context that the write is part of, from here to the
    subscribers.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._stub = KvServiceStub(channel)

    async def put(
        self,
        bucket: str,
        key: bytes,
        value: bytes,
        *,
        wait_applied: bool = False,
        source: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
        on_written: OnWritten | None = None,
        traceparent: str = "",
    ) -> KvWriteResult:
        """Write a value, whatever the key had."""
        check_bytes(key=key, value=value)
        request = kv_pb2.PutEntryRequest(bucket=bucket, key=key, value=value, wait=_wait(wait_applied, source))
        how = _CallOptions(timeout_s, on_written, traced(traceparent))
        return await self._write(self._stub.PutEntry, kv_pb2.PutEntryResponse, request, how)

    async def create(
        self,
        bucket: str,
        key: bytes,
        value: bytes,
        *,
        ttl_ms: int = 0,
        wait_applied: bool = False,
        source: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
        on_written: OnWritten | None = None,
        traceparent: str = "",
    ) -> KvWriteResult:
        """Write a value if the key is not live; `ttl_ms` (0 = for ever) is of this revision alone.

        Raises:
            EddylineError: KeyExists, RevisionMismatch (others were faster all the while).
        """
        check_bytes(key=key, value=value)
        request = kv_pb2.CreateEntryRequest(
            bucket=bucket, key=key, value=value, ttl_ms=ttl_ms, wait=_wait(wait_applied, source)
        )
        how = _CallOptions(timeout_s, on_written, traced(traceparent))
        return await self._write(self._stub.CreateEntry, kv_pb2.CreateEntryResponse, request, how)

    async def update(
        self,
        bucket: str,
        key: bytes,
        value: bytes,
        *,
        expected_revision: int,
        wait_applied: bool = False,
        source: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
        on_written: OnWritten | None = None,
        traceparent: str = "",
    ) -> KvWriteResult:
        """Write a value if the key's last revision is the expected one. A time to live does not carry over.

        Raises:
            EddylineError: RevisionMismatch.
        """
        check_bytes(key=key, value=value)
        request = kv_pb2.UpdateEntryRequest(
            bucket=bucket,
            key=key,
            value=value,
            expected_revision=expected_revision,
            wait=_wait(wait_applied, source),
        )
        how = _CallOptions(timeout_s, on_written, traced(traceparent))
        return await self._write(self._stub.UpdateEntry, kv_pb2.UpdateEntryResponse, request, how)

    async def delete(
        self,
        bucket: str,
        key: bytes,
        *,
        expected_revision: int = 0,
        wait_applied: bool = False,
        source: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
        on_written: OnWritten | None = None,
        traceparent: str = "",
    ) -> KvWriteResult:
        """Delete a key; older revisions stay in the bucket's history. `expected_revision` 0 = whatever it has.

        Raises:
            EddylineError: RevisionMismatch.
        """
        check_bytes(key=key)
        request = kv_pb2.DeleteEntryRequest(
            bucket=bucket, key=key, expected_revision=expected_revision, wait=_wait(wait_applied, source)
        )
        how = _CallOptions(timeout_s, on_written, traced(traceparent))
        return await self._write(self._stub.DeleteEntry, kv_pb2.DeleteEntryResponse, request, how)

    async def purge(
        self,
        bucket: str,
        key: bytes,
        *,
        expected_revision: int = 0,
        ttl_ms: int = 0,
        wait_applied: bool = False,
        source: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
        on_written: OnWritten | None = None,
        traceparent: str = "",
    ) -> KvWriteResult:
        """Delete a key and its older revisions in the bucket; `ttl_ms` (0 = for ever) is the marker's.

        Raises:
            EddylineError: RevisionMismatch.
        """
        check_bytes(key=key)
        request = kv_pb2.PurgeEntryRequest(
            bucket=bucket,
            key=key,
            expected_revision=expected_revision,
            ttl_ms=ttl_ms,
            wait=_wait(wait_applied, source),
        )
        how = _CallOptions(timeout_s, on_written, traced(traceparent))
        return await self._write(self._stub.PurgeEntry, kv_pb2.PurgeEntryResponse, request, how)

    async def _write(
        self,
        unary: Callable[..., Awaitable[Answer]],
        answer_type: type[Answer],
        request: Message,
        how: _CallOptions,
    ) -> KvWriteResult:
        if how.on_written is not None:
            return _written((await self._write_reporting(answer_type, request, how, how.on_written)).written)
        return _written((await call_once(unary(request, timeout=how.timeout_s, metadata=how.metadata))).written)

    async def _write_reporting(
        self, answer_type: type[Answer], request: Message, how: _CallOptions, on_written: OnWritten
    ) -> Answer:
        """Return the answer; before it, report the revision of a write that is waited for.

        Called as a stream of one answer, which is the same on the wire: gRPC's Python hands out the metadata of a
        single answer only together with it.
        """
        method = answer_type.DESCRIPTOR.name.removesuffix("Response")
        call: grpc.aio.UnaryStreamCall[Message, Answer] = self._channel.unary_stream(
            f"/{_SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer_type.FromString,
        )(request, timeout=how.timeout_s, metadata=how.metadata)
        try:
            with domain_errors():
                for name, value in await call.initial_metadata():
                    if name == WRITTEN_REVISION and isinstance(value, str):
                        on_written(int(value))
                async for answer in call:
                    return answer
        finally:
            call.cancel()
        raise WriteUnknown("the call ended without an answer")


def _wait(wait_applied: bool, source: str) -> kv_pb2.ApplyWait:
    return kv_pb2.ApplyWait(wait_applied=wait_applied, source=source)


def _written(written: kv_pb2.EntryWritten) -> KvWriteResult:
    return KvWriteResult(written.revision, written.stream_identity, written.version, tuple(written.applied_sources))
