"""Sums of two sides: groups that differ, sets of groups, and prefixes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.ingest.verify.key_sums import GROUPS, PREFIX_BYTES_MAX, PREFIXES_MAX, KeySums, Prefixes, group_of

SIDES = st.dictionaries(st.binary(max_size=3), st.binary(max_size=2), max_size=30)


def sums_of(bucket: dict[bytes, bytes], fold: dict[bytes, bytes]) -> KeySums:
    sums = KeySums()
    for key, value in bucket.items():
        sums.bucket.add(key, value)
    for key, value in reversed(fold.items()):
        sums.fold.add(key, value)
    return sums


@given(SIDES, SIDES, st.integers(1, 40))
def test_every_key_that_differs_is_in_exactly_one_portion(
    bucket: dict[bytes, bytes], fold: dict[bytes, bytes], keys_max: int
) -> None:
    key_groups = list(sums_of(bucket, fold).differing_groups(keys_max))
    differing = {key for key in bucket.keys() | fold.keys() if bucket.get(key) != fold.get(key)}
    for key in differing:
        assert sum(key_group.contains(key) for key_group in key_groups) == 1
    same = {group_of(key) for key in bucket.keys() | fold.keys()} - {group_of(key) for key in differing}
    for key in bucket.keys() | fold.keys():
        if group_of(key) in same:
            assert not any(key_group.contains(key) for key_group in key_groups)
    assert sum(key_group.surplus for key_group in key_groups) == len(bucket) - len(fold)


def test_key_groups_hold_no_more_keys_than_requested() -> None:
    keys = {b"k%d" % number: b"" for number in range(1_000)}
    sizes = [key_group.key_count for key_group in sums_of(keys, {}).differing_groups(100)]
    assert sum(sizes) == 1_000
    assert max(sizes) <= 100
    assert len(sizes) <= 12


def test_key_read_twice_or_changed_meanwhile_makes_its_group_differ() -> None:
    sums = sums_of({b"a": b"1", b"b": b"1"}, {b"a": b"1", b"b": b"1"})
    assert not list(sums.differing_groups(10))
    sums.mark_changed(b"b")
    (key_group,) = sums.differing_groups(10)
    assert key_group.contains(b"b")
    assert not key_group.contains(b"a")
    sums = sums_of({b"a": b"1"}, {b"a": b"1"})
    sums.bucket.add(b"a", b"1")
    sums.bucket.add(b"a", b"1")  # the hash is what it was, the count is not
    (key_group,) = sums.differing_groups(10)
    assert key_group.contains(b"a")


def test_values_of_two_keys_exchanged_differ() -> None:
    assert list(sums_of({b"a": b"1", b"b": b"2"}, {b"a": b"2", b"b": b"1"}).differing_groups(10))


def test_groups_are_many_and_bounded() -> None:
    groups = {group_of(b"%d" % number) for number in range(1_000)}
    assert len(groups) > 900
    assert max(groups) < GROUPS


@pytest.mark.parametrize(
    ("key", "prefix"),
    [
        (b"a.b.c", b"a."),
        (b"plain", b""),
        (b".x", b"."),
        (b"", b""),
        (b"x" * (PREFIX_BYTES_MAX - 1) + b".y", b"x" * (PREFIX_BYTES_MAX - 1) + b"."),
        (b"x" * PREFIX_BYTES_MAX + b".y", b""),
        (b"\xff.y", b"\xff."),
    ],
)
def test_prefix_of_a_key(key: bytes, prefix: bytes) -> None:
    assert Prefixes().of(key) == prefix


def test_only_the_first_prefixes_have_names_and_keep_them() -> None:
    prefixes = Prefixes()
    keys = [b"p%d.k" % number for number in range(PREFIXES_MAX + 10)]
    prefixes.count([*keys, *keys])
    assert len(prefixes.counts) == PREFIXES_MAX + 1
    assert prefixes.counts[b""] == 20
    assert prefixes.of(keys[0]) == b"p0."
    assert prefixes.of(keys[-1]) == b""
