"""A local fold in memory is a dict with an order, and knows what it takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.client.local_fold.frame import ITEM, Change
from eddyline.client.local_fold.memory import KEY_OVERHEAD_BYTES, FoldMap
from eddyline.core.errors import MemoryFull

KEYS = st.binary(max_size=2)
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=5)), max_size=8)
ASKED = st.tuples(KEYS, KEYS, st.integers(0, 4))


@given(st.lists(CHANGES | ASKED, max_size=30))
def test_it_is_a_dict_with_an_order(steps: list[list[Change] | tuple[bytes, bytes, int]]) -> None:
    live, expected = FoldMap(1 << 20), dict[bytes, bytes]()
    for step in steps:
        if isinstance(step, tuple):
            prefix, after, limit = step
            keys = [key for key in sorted(expected) if key.startswith(prefix) and (not after or key > after)]
            assert list(live.range(prefix, after, limit)) == keys[: limit or None]
            continue
        live.apply(step, live.growth(step))
        for key, entry in step:
            if entry is None:
                expected.pop(key, None)
            else:
                expected[key] = entry
        assert live.entries == expected
        content = sum(len(key) + len(entry) for key, entry in expected.items())
        assert live.live_bytes == content + ITEM.size * len(expected)
        assert live.memory_bytes == content + KEY_OVERHEAD_BYTES * len(expected)


def test_order_is_kept_while_keys_come_and_go_without_anybody_looking() -> None:
    live = FoldMap(1 << 20)
    live.apply([(b"a", b"")], live.growth([(b"a", b"")]))
    assert list(live.range(b"", b"", 0)) == [b"a"]
    for number in range(5_000):
        change: list[Change] = [(b"k%d" % (number % 7), b"" if number % 2 else None)]
        live.apply(change, live.growth(change))
    assert len(live._unordered) < 2_000
    assert list(live.range(b"", b"", 0)) == sorted(live.entries)


def test_its_memory_stays_within_its_bound_and_is_reported() -> None:
    one = KEY_OVERHEAD_BYTES + 10
    live = FoldMap(2 * one)
    changes: list[Change] = [(b"12345", b"12345"), (b"12346", b"12345")]
    live.apply(changes, live.growth(changes))
    with pytest.raises(MemoryFull, match=f"above its bound of {2 * one}"):
        live.growth([(b"c", b"")])
    with pytest.raises(MemoryFull):
        live.growth([(b"12345", b"123456")])
    swap: list[Change] = [(b"12345", None), (b"12347", b"12345")]
    live.apply(swap, live.growth(swap))
    assert live.memory_bytes == 2 * one
    assert live.growth([(b"12347", b"1")]) == -4
