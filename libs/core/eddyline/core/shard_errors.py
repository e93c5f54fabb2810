"""Errors about where a call belongs, a part of the catalogue in `errors.py`, which everybody takes them from."""

from __future__ import annotations

from eddyline.core.error_root import Code, EddylineError


class WrongShard(EddylineError):
    """A call that was forwarded already came to a store that does not own its topic: the roles disagree about the shards.
    Metadata: shardIndex (who answers; absent = it is no store), shardCount, and of the topic ownerIndex.

    Operator action: give all roles the same EDDYLINE_COMMON_STORE_ADDRESSES, in the same order.
    """

    code, reason = Code.UNAVAILABLE, "WRONG_SHARD"


class ServedElsewhere(EddylineError):
    """The role serves the service in part, and this call is none of it. Metadata: method.

    Operator action: none; the caller asks a store, GetTopology says where.
    """

    code, reason = Code.UNIMPLEMENTED, "SERVED_ELSEWHERE"
