"""Error catalogue: one class per cause, each with its code and its stable reason.

The reasons are those of `errors.proto`; a test compares the lists. Only `eddyline.core.transport.status` knows gRPC: it
maps these classes to `google.rpc.Status` and back, so both sides of a call have one vocabulary. Every dynamic part of a
message is also in `metadata` (keys in lowerCamelCase with units); the typed attributes read it from there, so they have
the same values on both sides.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, Final

from eddyline.core.advice import advice_of


class Code(Enum):
    """Canonical codes, named as in gRPC."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    ABORTED = "ABORTED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"
    DATA_LOSS = "DATA_LOSS"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    INTERNAL = "INTERNAL"
    UNIMPLEMENTED = "UNIMPLEMENTED"


class EddylineError(Exception):
    """Root of every error that a caller may see.

    `field` in the metadata names the wrong request field; `retryAfterMs` is the time before a retry.
    """

    code: ClassVar[Code] = Code.INTERNAL
    reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, **metadata: str | int) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items()}
        self.came_as: object = None
        """Wire form by another role, if the error is forwarded; only `eddyline.core.transport.status` reads it."""
        self.unanswered = False
        """True = the peer did not answer: the message is gRPC's, about a connection or a deadline."""

    @property
    def advice(self) -> str:
        """Advice as the command prints it; empty = none."""
        return advice_of(self.reason, self.metadata, unanswered=self.message if self.unanswered else "")

    def _number(self, key: str) -> int:
        return int(self.metadata.get(key, "0"))


# --- access and quotas ------------------------------------------------------------------------------------------------


class Unauthenticated(EddylineError):
    """The caller's key or certificate is missing or unknown to this role, or its key was revoked while a stream was
    open.

    Operator action: give the caller a key of the role's EDDYLINE_COMMON_KEYS_FILE.
    """

    code, reason = Code.UNAUTHENTICATED, "UNAUTHENTICATED"


class PermissionDenied(EddylineError):
    """The caller's key does not cover the call.

    Metadata: principal, method; scopes (one of them is needed, separated by commas) or name (the topic, source or
    bucket that none of its prefixes covers).

    Operator action: give the key the scope or the prefix, or call with another one.
    """

    code, reason = Code.PERMISSION_DENIED, "PERMISSION_DENIED"


class QuotaRequests(EddylineError):
    """The key has the maximum number of calls in progress at this role. Metadata: limit, retryAfterMs.

    Operator action: make fewer calls at once, or raise the key's requests_max or EDDYLINE_COMMON_KEY_REQUESTS_MAX.
    """

    code, reason = Code.RESOURCE_EXHAUSTED, "QUOTA_REQUESTS"


class QuotaWatches(EddylineError):
    """Too many watch streams, of one replica or of one key there. Metadata: limit, retryAfterMs.

    Operator action: add delivery replicas, or raise EDDYLINE_DELIVERY_WATCHES_MAX; of a key its watches_max or
    EDDYLINE_COMMON_KEY_WATCHES_MAX.
    """

    code, reason = Code.RESOURCE_EXHAUSTED, "QUOTA_WATCHES"


class QuotaBytes(EddylineError):
    """The store retains the maximum number of bytes of records. Metadata: retainedBytes, limitBytes, retryAfterMs.

    Operator action: delete records or topics, give topics caps or a TTL, or raise EDDYLINE_STORE_RETAINED_BYTES_MAX.
    """

    code, reason = Code.RESOURCE_EXHAUSTED, "QUOTA_BYTES"


# --- artifacts --------------------------------------------------------------------------------------------------------


class ArtifactInvalid(EddylineError):
    """An artifact does not match its manifest, or this version cannot read the manifest. The topic is unchanged.

    Metadata: artifact.

    Operator action: import another artifact, or export the fold again.
    """

    code, reason = Code.DATA_LOSS, "ARTIFACT_INVALID"


class ArtifactNotFound(EddylineError):
    """No artifact of this topic, or of this name. Metadata: topic, artifact."""

    code, reason = Code.NOT_FOUND, "ARTIFACT_NOT_FOUND"


class ArtifactMismatch(EddylineError):
    """The artifact is of another source than the topic's, or of none while the topic has one. Metadata: topic,
    artifact.

    Operator action: import into a topic without a source, or with the artifact's.
    """

    code, reason = Code.FAILED_PRECONDITION, "ARTIFACT_MISMATCH"


class ArtifactsNotConfigured(EddylineError):
    """The store has no location for artifacts, or one that cannot store a pointer safely.

    Operator action: set EDDYLINE_STORE_ARTIFACTS to a directory or to the URL of an object store, and restart.
    """

    code, reason = Code.FAILED_PRECONDITION, "ARTIFACTS_NOT_CONFIGURED"


class ArtifactsUnreachable(EddylineError):
    """The location for artifacts cannot be reached or does not answer. Metadata: cause."""

    code, reason = Code.UNAVAILABLE, "ARTIFACTS_UNREACHABLE"


# --- forwarded calls --------------------------------------------------------------------------------------------------


class WrongShard(EddylineError):
    """A forwarded call reached a store that does not own its topic: the roles have different shard lists.

    Metadata: shardIndex (of the answering store; absent = the role is no store), shardCount, and of the topic
    ownerIndex.

    Operator action: give all roles the same EDDYLINE_COMMON_STORE_ADDRESSES, in the same order.
    """

    code, reason = Code.UNAVAILABLE, "WRONG_SHARD"


class ServedElsewhere(EddylineError):
    """The role serves part of the service, without this call. Metadata: method.

    Operator action: none; the caller uses a store, whose address GetTopology returns.
    """

    code, reason = Code.UNIMPLEMENTED, "SERVED_ELSEWHERE"


# --- topics, sources and records --------------------------------------------------------------------------------------


class InvalidArgument(EddylineError):
    """A request field is missing or out of its bounds."""

    code, reason = Code.INVALID_ARGUMENT, "INVALID_ARGUMENT"


class InvalidName(EddylineError):
    """A topic, source or writer name breaks the rule of names."""

    code, reason = Code.INVALID_ARGUMENT, "INVALID_NAME"


class InvalidConfig(EddylineError):
    """A topic's configuration contradicts itself."""

    code, reason = Code.INVALID_ARGUMENT, "INVALID_CONFIG"


class NotYet(EddylineError):
    """Reserved for a later version."""

    code, reason = Code.INVALID_ARGUMENT, "NOT_YET"


class MalformedColumns(EddylineError):
    """Columns do not fit together."""

    code, reason = Code.INVALID_ARGUMENT, "MALFORMED_COLUMNS"


class BatchTooLarge(EddylineError):
    """More records, or bytes, than an append may carry."""

    code, reason = Code.INVALID_ARGUMENT, "BATCH_TOO_LARGE"


class RecordTooLarge(EddylineError):
    """A field of a record is larger than its bound."""

    code, reason = Code.INVALID_ARGUMENT, "RECORD_TOO_LARGE"


class InvalidOp(EddylineError):
    """The topic, or the caller, does not accept the op."""

    code, reason = Code.INVALID_ARGUMENT, "INVALID_OP"


class KeyRequired(EddylineError):
    """A record of a KV topic has no key."""

    code, reason = Code.INVALID_ARGUMENT, "KEY_REQUIRED"


class PageTokenInvalid(EddylineError):
    """The page token is not from this call."""

    code, reason = Code.INVALID_ARGUMENT, "PAGE_TOKEN_INVALID"


class ResumeTokenInvalid(EddylineError):
    """Not a resume token of delivery, or a damaged one."""

    code, reason = Code.INVALID_ARGUMENT, "RESUME_TOKEN_INVALID"


class ResumeTokenMismatch(EddylineError):
    """The resume token is of other topics only, or of other filters or options of a topic."""

    code, reason = Code.INVALID_ARGUMENT, "RESUME_TOKEN_MISMATCH"


class StreamOrder(EddylineError):
    """The step is not allowed at this point of the stream."""

    code, reason = Code.INVALID_ARGUMENT, "STREAM_ORDER"


class TopicNotFound(EddylineError):
    """No topic of this name. Metadata: topic; kvWanted (set by the client: the call needs a KV topic)."""

    code, reason = Code.NOT_FOUND, "TOPIC_NOT_FOUND"


class SourceNotFound(EddylineError):
    """No source of this name."""

    code, reason = Code.NOT_FOUND, "SOURCE_NOT_FOUND"


class KeyNotFound(EddylineError):
    """The key is not live."""

    code, reason = Code.NOT_FOUND, "KEY_NOT_FOUND"


class BucketNotFound(EddylineError):
    """No KV bucket of this name at NATS.

    Operator action: create the bucket, or delete the source. Copied records stay readable.
    """

    code, reason = Code.NOT_FOUND, "BUCKET_NOT_FOUND"


class ForeignSubjects(EddylineError):
    """A bucket's stream holds subjects that are no keys of the bucket.

    Operator action: copy it as a stream, which takes every subject, or remove those messages from it.
    """

    code, reason = Code.FAILED_PRECONDITION, "FOREIGN_SUBJECTS"


class TopicExists(EddylineError):
    """A topic of this name exists. Metadata: topic, kind, durability."""

    code, reason = Code.ALREADY_EXISTS, "TOPIC_EXISTS"


class SourceExists(EddylineError):
    """A source of this name exists with another definition.

    Metadata: fields (those that differ, separated by commas), isSettled (only if one of them is fixed at creation).
    """

    code, reason = Code.ALREADY_EXISTS, "SOURCE_EXISTS"


class IdempotencyConflict(EddylineError):
    """The idempotency key was used for other content."""

    code, reason = Code.ALREADY_EXISTS, "IDEMPOTENCY_CONFLICT"


class EpochMismatch(EddylineError):
    """The topic has another epoch: it was deleted and created again. Metadata: epoch."""

    code, reason = Code.ABORTED, "EPOCH_MISMATCH"


class HeadMismatch(EddylineError):
    """The topic's head is not the expected one. Metadata: headSeq."""

    code, reason = Code.ABORTED, "HEAD_MISMATCH"

    @property
    def head_seq(self) -> int:
        """Head of the topic, including appends in progress."""
        return self._number("headSeq")


class VersionMismatch(EddylineError):
    """A key's version is not the expected one. Metadata: key, version (both hex; empty = not live)."""

    code, reason = Code.ABORTED, "VERSION_MISMATCH"

    @property
    def key(self) -> bytes:
        """The first key that differs."""
        return bytes.fromhex(self.metadata.get("key", ""))

    @property
    def version(self) -> bytes:
        """Its live version; empty = not live."""
        return bytes.fromhex(self.metadata.get("version", ""))


class StaleFence(EddylineError):
    """A newer fencing token exists. Metadata: fence, the stored one."""

    code, reason = Code.ABORTED, "STALE_FENCE"

    @property
    def fence(self) -> int:
        """The stored fencing token."""
        return self._number("fence")


class StalePosition(EddylineError):
    """The writer's stored position differs. Metadata: position, hex."""

    code, reason = Code.ABORTED, "STALE_POSITION"

    @property
    def position(self) -> bytes:
        """The stored position; empty = none."""
        return bytes.fromhex(self.metadata.get("position", ""))


class LeaseHeld(EddylineError):
    """Another holder has the lease. Metadata: holder, remainingMs."""

    code, reason = Code.ABORTED, "LEASE_HELD"

    @property
    def remaining_ms(self) -> int:
        """Remaining time of the lease."""
        return self._number("remainingMs")


class TopicHasSource(EddylineError):
    """Only the topic's source may write to it. Metadata: source."""

    code, reason = Code.FAILED_PRECONDITION, "TOPIC_HAS_SOURCE"


class TopicNotEmpty(EddylineError):
    """The topic has records."""

    code, reason = Code.FAILED_PRECONDITION, "TOPIC_NOT_EMPTY"


class NotKv(EddylineError):
    """The topic has no fold."""

    code, reason = Code.FAILED_PRECONDITION, "NOT_KV"


class NotLog(EddylineError):
    """The operation needs a topic of kind LOG."""

    code, reason = Code.FAILED_PRECONDITION, "NOT_LOG"


class TopicFull(EddylineError):
    """The append exceeds the topic's cap, and the topic rejects. Metadata: capRecords, capBytes, headSeq, earliestSeq.

    Operator action: delete records, raise the topic's cap, or let it discard OLD. An append that is larger than the cap
    itself is never accepted.
    """

    code, reason = Code.FAILED_PRECONDITION, "TOPIC_FULL"

    @property
    def cap_records(self) -> int:
        """The topic's cap by records; 0 = none."""
        return self._number("capRecords")

    @property
    def cap_bytes(self) -> int:
        """The topic's cap by bytes; 0 = none."""
        return self._number("capBytes")

    @property
    def head_seq(self) -> int:
        """Head of the topic, including appends in progress."""
        return self._number("headSeq")

    @property
    def earliest_seq(self) -> int:
        """Seq of the first live record, else head + 1."""
        return self._number("earliestSeq")


class Oversize(EddylineError):
    """A record as one message is larger than the caller's channel accepts.

    Metadata: topic, seq, sizeBytes, limitBytes, channelOption, the option to raise.
    """

    code, reason = Code.FAILED_PRECONDITION, "OVERSIZE"


class ClusterMismatch(EddylineError):
    """The caller is a role of another cluster than the store. Metadata: clusterId, the store's.

    Operator action: give the role the store's EDDYLINE_COMMON_CLUSTER_ID, or the address of its own cluster's store.
    """

    code, reason = Code.FAILED_PRECONDITION, "CLUSTER_MISMATCH"


ROLE_REFUSED: Final = (ClusterMismatch, Unauthenticated, PermissionDenied)
"""Errors by which a store refuses every call of a role until an operator acts."""


class CursorAhead(EddylineError):
    """The cursor is past the topic's head. Metadata: headSeq."""

    code, reason = Code.OUT_OF_RANGE, "CURSOR_AHEAD"

    @property
    def head_seq(self) -> int:
        """Head of the topic."""
        return self._number("headSeq")


class HistoryGone(EddylineError):
    """The requested point is older than the retained history. Metadata: earliestSeq, the first seq with an answer."""

    code, reason = Code.OUT_OF_RANGE, "HISTORY_GONE"

    @property
    def earliest_seq(self) -> int:
        """The earliest point that can be answered."""
        return self._number("earliestSeq")


class TimeNotReached(EddylineError):
    """The requested time is in the future: the answer could still change. Metadata: nowMs, headSeq."""

    code, reason = Code.OUT_OF_RANGE, "TIME_NOT_REACHED"

    @property
    def now_ms(self) -> int:
        """The store's time, in milliseconds since the Unix epoch."""
        return self._number("nowMs")


class Throttled(EddylineError):
    """Too many appends are waiting. Metadata: retryAfterMs."""

    code, reason = Code.RESOURCE_EXHAUSTED, "THROTTLED"


class ApplyLag(EddylineError):
    """The fold is too far behind the log. Metadata: retryAfterMs."""

    code, reason = Code.RESOURCE_EXHAUSTED, "APPLY_LAG"


class QuotaTopics(EddylineError):
    """The store has the maximum number of topics. Metadata: topicsMax, retryAfterMs.

    Operator action: delete topics, or raise EDDYLINE_STORE_TOPICS_MAX.
    """

    code, reason = Code.RESOURCE_EXHAUSTED, "QUOTA_TOPICS"


class DiskFloor(EddylineError):
    """Free disk space is below the store's floor. Deletes and reads are served. Metadata: retryAfterMs.

    Operator action: free space, delete records or topics, or lower EDDYLINE_STORE_DISK_FLOOR_BYTES; writes then resume
    automatically.
    """

    code, reason = Code.RESOURCE_EXHAUSTED, "DISK_FLOOR"


class MemoryFull(EddylineError):
    """The store's process, or its EPHEMERAL topics, have reached their memory limit. Metadata: retryAfterMs.

    Operator action: retry; if it persists check the disk, or raise EDDYLINE_STORE_MEMORY_BYTES.
    """

    code, reason = Code.RESOURCE_EXHAUSTED, "MEMORY_FULL"


class TooManyScans(EddylineError):
    """Too many range scans at once. Metadata: retryAfterMs."""

    code, reason = Code.RESOURCE_EXHAUSTED, "TOO_MANY_SCANS"


class CommitUnknown(EddylineError):
    """Bytes were written to the disk with unknown outcome. A retry with the same idempotency key or position resolves it."""

    code, reason = Code.UNAVAILABLE, "COMMIT_UNKNOWN"


class ReadOnly(EddylineError):
    """The shard serves only reads.

    Operator action: check the disk, then restart the store; a failed sync is never retried on the same file.
    """

    code, reason = Code.UNAVAILABLE, "READ_ONLY"


class NotReady(EddylineError):
    """The role is starting or stopping."""

    code, reason = Code.UNAVAILABLE, "NOT_READY"


class Draining(EddylineError):
    """The replica is shutting down and accepts no new streams.

    Metadata: retryAfterMs, the time until a replica is available at its address again.
    """

    code, reason = Code.UNAVAILABLE, "DRAINING"


class FoldBehind(EddylineError):
    """The fold did not reach the requested seq in time. Metadata: foldSeq."""

    code, reason = Code.UNAVAILABLE, "FOLD_BEHIND"


class StoreUnreachable(EddylineError):
    """The store cannot be reached."""

    code, reason = Code.UNAVAILABLE, "STORE_UNREACHABLE"


class NatsUnreachable(EddylineError):
    """NATS cannot be reached."""

    code, reason = Code.UNAVAILABLE, "NATS_UNREACHABLE"


class ScanExpired(EddylineError):
    """A range scan exceeded its maximum life; continue after the last key."""

    code, reason = Code.UNAVAILABLE, "SCAN_EXPIRED"


class DataCorrupt(EddylineError):
    """A checksum is wrong below the synced point. Metadata: file, offset.

    Operator action: keep the file, and restore the data directory from a copy.
    """

    code, reason = Code.DATA_LOSS, "DATA_CORRUPT"


class FoldLost(EddylineError):
    """The topic's fold is damaged, and neither a base nor the log reaches back to restore it. Log reads are served.

    Operator action: let the source write it again, import a copy, or accept the entries of base and log (SettleFold).
    """

    code, reason = Code.DATA_LOSS, "FOLD_LOST"


class CatalogLost(EddylineError):
    """The catalog is missing, or older than the log requires: the store does not start, and changes nothing.

    Operator action: restore the data directory from a copy; a copy needs both the catalog and its log.
    """

    code, reason = Code.DATA_LOSS, "CATALOG_LOST"


class NewerFormat(DataCorrupt):
    """A file or directory of a later version: the store does not start, and changes nothing. Metadata: file, offset.

    Operator action: start the version that wrote it, or a later one.
    """

    code, reason = Code.FAILED_PRECONDITION, "NEWER_FORMAT"


class Deadline(EddylineError):
    """The call's deadline has passed."""

    code, reason = Code.DEADLINE_EXCEEDED, "DEADLINE"


class Internal(EddylineError):
    """A defect of Eddyline. Metadata: id, which the role's log has too."""

    code, reason = Code.INTERNAL, "INTERNAL"


# --- writes to NATS buckets -------------------------------------------------------------------------------------------


class KeyInvalid(EddylineError):
    """A key that NATS's rule for KV keys does not allow to write. Metadata: key, hex."""

    code, reason = Code.INVALID_ARGUMENT, "KEY_INVALID"


class ValueTooLarge(EddylineError):
    """A value is larger than a limit. Metadata: valueBytes, valueBytesMax, setBy (bucket, server or record)."""

    code, reason = Code.INVALID_ARGUMENT, "VALUE_TOO_LARGE"


class KeyExists(EddylineError):
    """The key is live in the bucket. Metadata: key, hex; revision."""

    code, reason = Code.ALREADY_EXISTS, "KEY_EXISTS"

    @property
    def revision(self) -> int:
        """Its live revision."""
        return self._number("revision")


class RevisionMismatch(EddylineError):
    """The key's last revision in the bucket is not the expected one. Metadata: key, hex; revision."""

    code, reason = Code.ABORTED, "REVISION_MISMATCH"

    @property
    def revision(self) -> int:
        """Revision of the key's last write, including a marker; 0 = the bucket has no message of the key."""
        return self._number("revision")


class BucketNotCopied(EddylineError):
    """No source copies the bucket, or this key of it, so a write is never applied. Nothing was written. Metadata:
    bucket.

    Operator action: create a source that covers it, or write without waiting for the store.
    """

    code, reason = Code.FAILED_PRECONDITION, "BUCKET_NOT_COPIED"


class BucketFull(EddylineError):
    """The bucket, or its account at NATS, is full. Metadata: bucket.

    Operator action: raise the bucket's max_bytes or the account's limits, or delete keys.
    """

    code, reason = Code.FAILED_PRECONDITION, "BUCKET_FULL"


class BucketForbids(EddylineError):
    """The bucket's settings, or ingest's permissions at NATS, do not allow the write.

    Metadata: bucket; setting, as named by NATS, or `permissions`.
    """

    code, reason = Code.FAILED_PRECONDITION, "BUCKET_FORBIDS"


class WriteUnknown(EddylineError):
    """A write was sent to NATS without an answer: it may have happened, or still happen. Read the key to find out."""

    code, reason = Code.UNAVAILABLE, "WRITE_UNKNOWN"


class ApplyPending(EddylineError):
    """The write is done; the store did not apply it in time. Metadata: bucket, revision, source."""

    code, reason = Code.DEADLINE_EXCEEDED, "APPLY_PENDING"

    @property
    def revision(self) -> int:
        """Revision of the write."""
        return self._number("revision")


CLASS_BY_REASON: Final = {
    item.reason: item
    for item in tuple(vars().values())
    if isinstance(item, type) and issubclass(item, EddylineError) and item is not EddylineError
}
"""Class of each reason, also where it derives from another error of the catalogue (`NewerFormat`)."""
