"""Routing: maps a topic's name to the shard that owns it.

The name alone decides, once, when the topic is made; every role computes the same shard without a call.
xxh3_64 of the name's UTF-8 bytes, seed 0, is part of the contract (`cluster.proto`): it may never change.
"""

from __future__ import annotations

from itertools import chain
from itertools import count as numbers

import xxhash


def shard_of(name: str, count: int) -> int:
    """Return the index of the shard that owns topic `name` among `count` shards."""
    assert count >= 1
    return int(xxhash.xxh3_64_intdigest(name.encode())) % count


def name_on(index: int, count: int, stem: str) -> str:
    """Return a name that shard `index` of `count` would own: `stem`, or `stem` with a number."""
    assert 0 <= index < count
    names = chain((stem,), (f"{stem}.{number}" for number in numbers()))
    return next(name for name in names if shard_of(name, count) == index)
