"""Assignment of topics to shards."""

from __future__ import annotations

from eddyline.core.model.sharding import name_on, shard_of


def test_one_shard_owns_everything() -> None:
    assert {shard_of(f"topic.{number}", 1) for number in range(100)} == {0}


def test_placement_is_fixed_by_the_contract() -> None:
    # These numbers are in clients of every language: if they change, clients look for topics on the wrong shards.
    assert [shard_of(name, 1 << 16) for name in ("orders", "kv:users", "a")] == [29947, 27794, 19999]


def test_topics_spread_over_all_shards() -> None:
    counts = [0] * 8
    for number in range(8_000):
        counts[shard_of(f"topic-{number}", 8)] += 1
    assert min(counts) > 850
    assert max(counts) < 1150


def test_every_shard_has_a_name_of_a_stem() -> None:
    assert name_on(0, 1, "probe") == "probe"
    names = [name_on(index, 64, "probe") for index in range(64)]
    assert [shard_of(name, 64) for name in names] == list(range(64))
    assert "probe" in names
