"""Idempotency keys: windows, bounds, and who goes first."""

from __future__ import annotations

from eddyline.store.log.idempotency_keys import KEY_OVERHEAD_BYTES, IdempotencyKeys, KeyBudget, KeyedAppend

WINDOW_MS = 1_000


def remember(keys: IdempotencyKeys, name: bytes, ts_ms: int = 0) -> None:
    keys.commit(name, KeyedAppend(b"hash", 1, 1, ts_ms))


def known(keys: IdempotencyKeys, name: bytes, now_ms: int = 0) -> bool:
    return keys.find(name, b"hash", now_ms=now_ms, window_ms=WINDOW_MS) is not None


def test_key_is_known_through_its_window_and_not_after() -> None:
    keys = IdempotencyKeys(KeyBudget())
    remember(keys, b"a", ts_ms=100)
    assert known(keys, b"a", now_ms=100 + WINDOW_MS)
    assert not known(keys, b"a", now_ms=101 + WINDOW_MS)


def test_store_wide_bound_drops_the_oldest_of_any_topic_and_counts_it() -> None:
    budget = KeyBudget(bytes_max=3 * (KEY_OVERHEAD_BYTES + 1))
    first, second = IdempotencyKeys(budget), IdempotencyKeys(budget)
    remember(first, b"a")
    remember(second, b"b")
    remember(first, b"c")
    remember(second, b"d")
    assert not known(first, b"a")
    assert known(second, b"b")
    assert known(first, b"c")
    assert known(second, b"d")
    assert budget.dropped_count == 1


def test_keys_of_a_topic_that_is_gone_take_no_room() -> None:
    budget = KeyBudget(bytes_max=2 * (KEY_OVERHEAD_BYTES + 1))
    gone, kept = IdempotencyKeys(budget), IdempotencyKeys(budget)
    remember(gone, b"a")
    remember(gone, b"b")
    gone.clear()
    remember(kept, b"c")
    remember(kept, b"d")
    assert known(kept, b"c")
    assert budget.dropped_count == 0


def test_dropped_keys_do_not_stay_in_the_order_by_age() -> None:
    budget = KeyBudget()
    keys = IdempotencyKeys(budget)
    for number in range(5_000):
        remember(keys, b"%d" % number, ts_ms=number * 10)
        keys.expire(number * 10, WINDOW_MS)
    assert len(budget._oldest) < 2_500
    assert known(keys, b"4999", now_ms=49_990)


def test_key_used_again_is_remembered_once() -> None:
    budget = KeyBudget(bytes_max=2 * (KEY_OVERHEAD_BYTES + 1))
    keys = IdempotencyKeys(budget)
    for _ in range(10):
        remember(keys, b"a")
    remember(keys, b"b")
    assert known(keys, b"a")
    assert known(keys, b"b")
    assert budget.dropped_count == 0
