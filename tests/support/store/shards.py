"""Names of topics by the shard that they live on."""

from __future__ import annotations

from itertools import count, islice

from eddyline.core.model.sharding import shard_of


def names_on(shard: int, shard_count: int, number: int, *, stem: str = "t") -> list[str]:
    """So many names of topics of a shard."""
    names = (f"{stem}{suffix}" for suffix in count())
    return list(islice((name for name in names if shard_of(name, shard_count) == shard), number))
