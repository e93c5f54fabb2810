"""The error catalogue, continued: what ends a write into a bucket of NATS. Rules are those of `eddyline.core.errors`."""

from __future__ import annotations

from eddyline.core.errors import Code, EddylineError


class KeyInvalid(EddylineError):
    """A key that NATS's rule of KV keys does not allow to write. Metadata: key, hex."""

    code, reason = Code.INVALID_ARGUMENT, "KEY_INVALID"


class ValueTooLarge(EddylineError):
    """A value that is larger than a bound. Metadata: valueBytes, valueBytesMax, setBy (bucket, server or record)."""

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
        """Revision of the key's last write, a marker's too; 0 = the bucket has nothing of the key."""
        return self._number("revision")


class BucketNotCopied(EddylineError):
    """No source copies the bucket, or this key of it, so it is never applied. Nothing was written. Metadata: bucket.

    Operator action: create a source that takes it, or write without waiting for the store.
    """

    code, reason = Code.FAILED_PRECONDITION, "BUCKET_NOT_COPIED"


class BucketFull(EddylineError):
    """The bucket, or its account at NATS, has no room. Metadata: bucket.

    Operator action: raise the bucket's max_bytes or the account's limits, or delete keys.
    """

    code, reason = Code.FAILED_PRECONDITION, "BUCKET_FULL"


class BucketForbids(EddylineError):
    """The bucket's settings, or our permissions at NATS, do not allow the write.

    Metadata: bucket; setting, named as NATS names it, or `permissions`.
    """

    code, reason = Code.FAILED_PRECONDITION, "BUCKET_FORBIDS"


class WriteUnknown(EddylineError):
    """A write was sent to NATS and no answer came: it may be written, now or later. Read the key to settle it."""

    code, reason = Code.UNAVAILABLE, "WRITE_UNKNOWN"


class ApplyPending(EddylineError):
    """The write is done; the store had not applied it in time. Metadata: bucket, revision, source."""

    code, reason = Code.DEADLINE_EXCEEDED, "APPLY_PENDING"

    @property
    def revision(self) -> int:
        """Revision of the write."""
        return self._number("revision")
