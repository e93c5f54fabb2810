"""Sums of two sides: which groups differ, in portions, and names of prefixes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.ingest.verify.key_sums import GROUPS, PREFIX_BYTES_MAX, PREFIXES_MAX, KeySums, Prefixes, group_of

SIDES = st.dictionaries(st.binary(max_size=3), st.binary(max_size=2), max_size=30)


def tally_of(bucket: dict[bytes, bytes], fold: dict[bytes, bytes]) -> KeySums:
    tally = KeySums()
    for key, value in bucket.items():
        tally.bucket.add(key, value)
    for key, value in reversed(fold.items()):
        tally.fold.add(key, value)
    return tally


@given(SIDES, SIDES, st.integers(1, 40))
def test_every_key_that_differs_is_in_exactly_one_portion(
    bucket: dict[bytes, bytes], fold: dict[bytes, bytes], keys_max: int
) -> None:
    portions = list(tally_of(bucket, fold).portions(keys_max))
    differing = {key for key in bucket.keys() | fold.keys() if bucket.get(key) != fold.get(key)}
    for key in differing:
        assert sum(portion.wants(key) for portion in portions) == 1
    same = {group_of(key) for key in bucket.keys() | fold.keys()} - {group_of(key) for key in differing}
    for key in bucket.keys() | fold.keys():
        if group_of(key) in same:
            assert not any(portion.wants(key) for portion in portions)
    assert sum(portion.surplus for portion in portions) == len(bucket) - len(fold)


def test_portions_hold_no_more_keys_than_asked_for() -> None:
    keys = {b"k%d" % number: b"" for number in range(1_000)}
    sizes = [portion.key_count for portion in tally_of(keys, {}).portions(100)]
    assert sum(sizes) == 1_000
    assert max(sizes) <= 100
    assert len(sizes) <= 12


def test_key_read_twice_or_changed_meanwhile_makes_its_group_differ() -> None:
    tally = tally_of({b"a": b"1", b"b": b"1"}, {b"a": b"1", b"b": b"1"})
    assert not list(tally.portions(10))
    tally.mark(b"b")
    (portion,) = tally.portions(10)
    assert portion.wants(b"b")
    assert not portion.wants(b"a")
    tally = tally_of({b"a": b"1"}, {b"a": b"1"})
    tally.bucket.add(b"a", b"1")
    tally.bucket.add(b"a", b"1")  # the hash is what it was, the count is not
    (portion,) = tally.portions(10)
    assert portion.wants(b"a")


def test_values_of_two_keys_exchanged_differ() -> None:
    assert list(tally_of({b"a": b"1", b"b": b"2"}, {b"a": b"2", b"b": b"1"}).portions(10))


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
