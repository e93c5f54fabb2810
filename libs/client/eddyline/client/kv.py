"""Writes into NATS KV buckets, through ingest: NATS's own compare-and-set, and waiting until the store has it.

No call is repeated here: where nobody knows whether it was done (`WriteUnknown`, and `NotReady` of a connection that
broke) only the caller knows what a second write would harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eddyline.client.call import CALL_TIMEOUT_S, call_once
from eddyline.v1 import kv_pb2
from eddyline.v1.kv_pb2_grpc import KvServiceStub

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True, slots=True)
class Written:
    """A write that NATS has. `stream_identity` and `version` are what gaps and records of the topic have of it.

    `applied_sources`: the sources whose topics have it; empty where none was waited for.
    """

    revision: int
    stream_identity: bytes
    version: bytes
    applied_sources: tuple[str, ...]


class Kv:
    """The KvService of a cluster. `Client.kv` gives it.

    `wait_applied`: return once every source that copies the bucket (`source`: that one) has applied the write, at most to
    `timeout_s`. Every method raises, as classes of `eddyline.core.errors`: KeyInvalid, BucketNotFound, BucketNotCopied,
    ValueTooLarge, BucketFull, BucketForbids, Throttled, NatsUnreachable (nothing was written); WriteUnknown (nobody
    knows); ApplyPending (written at its `revision`, the wait was too short).
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
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
    ) -> Written:
        """Write a value, whatever the key had."""
        request = kv_pb2.PutEntryRequest(bucket=bucket, key=key, value=value, wait=_wait(wait_applied, source))
        return _written((await call_once(self._stub.PutEntry(request, timeout=timeout_s))).written)

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
    ) -> Written:
        """Write a value if the key is not live; `ttl_ms` (0 = for ever) is of this revision alone.

        Raises:
            EddylineError: KeyExists, RevisionMismatch (others were faster all the while).
        """
        request = kv_pb2.CreateEntryRequest(
            bucket=bucket, key=key, value=value, ttl_ms=ttl_ms, wait=_wait(wait_applied, source)
        )
        return _written((await call_once(self._stub.CreateEntry(request, timeout=timeout_s))).written)

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
    ) -> Written:
        """Write a value if the key's last revision is the expected one. A time to live does not carry over.

        Raises:
            EddylineError: RevisionMismatch.
        """
        request = kv_pb2.UpdateEntryRequest(
            bucket=bucket,
            key=key,
            value=value,
            expected_revision=expected_revision,
            wait=_wait(wait_applied, source),
        )
        return _written((await call_once(self._stub.UpdateEntry(request, timeout=timeout_s))).written)

    async def delete(
        self,
        bucket: str,
        key: bytes,
        *,
        expected_revision: int = 0,
        wait_applied: bool = False,
        source: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Written:
        """Delete a key; older revisions stay in the bucket's history. `expected_revision` 0 = whatever it has.

        Raises:
            EddylineError: RevisionMismatch.
        """
        request = kv_pb2.DeleteEntryRequest(
            bucket=bucket, key=key, expected_revision=expected_revision, wait=_wait(wait_applied, source)
        )
        return _written((await call_once(self._stub.DeleteEntry(request, timeout=timeout_s))).written)

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
    ) -> Written:
        """Delete a key and its older revisions in the bucket; `ttl_ms` (0 = for ever) is the marker's.

        Raises:
            EddylineError: RevisionMismatch.
        """
        request = kv_pb2.PurgeEntryRequest(
            bucket=bucket,
            key=key,
            expected_revision=expected_revision,
            ttl_ms=ttl_ms,
            wait=_wait(wait_applied, source),
        )
        return _written((await call_once(self._stub.PurgeEntry(request, timeout=timeout_s))).written)


def _wait(wait_applied: bool, source: str) -> kv_pb2.ApplyWait:
    return kv_pb2.ApplyWait(wait_applied=wait_applied, source=source)


def _written(written: kv_pb2.EntryWritten) -> Written:
    return Written(written.revision, written.stream_identity, written.version, tuple(written.applied_sources))
