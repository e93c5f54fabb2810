"""Errors about who may do what, and how much, a part of the catalogue in `errors.py`, which everybody takes them from."""

from __future__ import annotations

from eddyline.core.error_root import Code, EddylineError


class Unauthenticated(EddylineError):
    """The caller brought no key or certificate that this role knows, or its key was taken away while a stream was open.

    Operator action: give the caller a key of the role's EDDYLINE_COMMON_KEYS_FILE.
    """

    code, reason = Code.UNAUTHENTICATED, "UNAUTHENTICATED"


class PermissionDenied(EddylineError):
    """The caller's key does not cover the call. Metadata: principal, method; scopes (those of which one is needed, with
    commas) or name (the topic, source or bucket that none of its prefixes covers).

    Operator action: give the key the scope or the prefix, or call with another one.
    """

    code, reason = Code.PERMISSION_DENIED, "PERMISSION_DENIED"


class QuotaRequests(EddylineError):
    """The key has as many calls under way at this role as it may. Metadata: limit, retryAfterMs.

    Operator action: call less at once, or raise the key's requests_max or EDDYLINE_COMMON_KEY_REQUESTS_MAX.
    """

    code, reason = Code.RESOURCE_EXHAUSTED, "QUOTA_REQUESTS"


class QuotaWatches(EddylineError):
    """Too many watch streams, of one replica or of one key there. Metadata: limit, retryAfterMs.

    Operator action: add delivery replicas, or raise EDDYLINE_DELIVERY_WATCHES_MAX; of a key its watches_max or
    EDDYLINE_COMMON_KEY_WATCHES_MAX.
    """

    code, reason = Code.RESOURCE_EXHAUSTED, "QUOTA_WATCHES"


class QuotaBytes(EddylineError):
    """The store retains as many bytes of records as it may. Metadata: retainedBytes, limitBytes, retryAfterMs.

    Operator action: delete records or topics, give topics caps or a TTL, or raise EDDYLINE_STORE_RETAINED_BYTES_MAX.
    """

    code, reason = Code.RESOURCE_EXHAUSTED, "QUOTA_BYTES"
