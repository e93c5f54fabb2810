"""Routing: which shard owns a topic.

A topic is placed once, when it is made, by its name alone; every role computes the same shard without asking.
xxh3_64 of the name's UTF-8 bytes, seed 0, is part of the contract (`cluster.proto`): it may never change.
"""

from __future__ import annotations

import xxhash


def shard_of(name: str, count: int) -> int:
    """Index of the shard that owns topic `name` among `count` shards."""
    assert count >= 1
    return int(xxhash.xxh3_64_intdigest(name.encode())) % count
