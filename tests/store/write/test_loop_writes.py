"""Writes on the event loop: how long they may hold it, and when they are tried again."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from eddyline.store.write.loop_writes import (
    BURST_S,
    HERE_S_MAX,
    SHARE,
    SURELY_DISK_S,
    TRIES_APART_MAX,
    TRIES_APART_MIN,
    LoopWrites,
)

QUICK_S = 0.000_1
SLOW_S = 0.01
TIMES = st.floats(0.000_01, 0.2)


@given(st.lists(st.tuples(st.floats(0, 0.05), TIMES), max_size=200))
def test_the_loop_is_held_for_its_share_and_one_write(steps: list[tuple[float, float]]) -> None:
    pace, now_s = LoopWrites(), 100.0
    held: list[tuple[float, float]] = []
    for idle_s, took_s in steps:
        now_s += idle_s
        if pace.may_write(now_s):
            held.append((now_s, took_s))
            now_s += took_s
            pace.wrote_here(took_s, now_s)
        else:
            pace.wrote_away(took_s)
    for first in range(len(held)):
        total_s = 0.0
        for began_s, took_s in held[first:]:
            # each began when what was held before it was paid for
            assert total_s <= SHARE * (began_s - held[first][0]) + BURST_S + held[first][1] + 1e-9
            total_s += took_s


def test_quick_writes_are_made_here_and_one_slow_one_sends_few_away() -> None:
    pace, now_s = LoopWrites(), 0.0
    for _ in range(50):
        now_s += 0.001
        assert pace.may_write(now_s)
        pace.wrote_here(QUICK_S, now_s)
    pace.wrote_here(SLOW_S, now_s)
    assert not pace.may_write(now_s + SLOW_S)
    now_s, away = now_s + 1, 0
    while not pace.may_write(now_s):
        pace.wrote_away(QUICK_S)
        away += 1
    assert 0 < away <= TRIES_APART_MIN


def test_on_a_slow_disk_tries_are_ever_further_apart() -> None:
    pace, tries, now_s = LoopWrites(), [], 0.0
    for group in range(5 * TRIES_APART_MAX):
        now_s += 1
        if pace.may_write(now_s):
            tries.append(group)
            pace.wrote_here(SLOW_S, now_s)
        else:
            pace.wrote_away(SLOW_S)
    distances = [after - before for before, after in pairwise(tries)]
    assert distances == sorted(distances)
    assert distances[0] > TRIES_APART_MIN
    assert distances[-1] == TRIES_APART_MAX + 1


def test_what_the_threads_wait_may_explain_says_nothing() -> None:
    pace = LoopWrites()
    pace.wrote_here(QUICK_S, 0.0)
    expected_s = pace.expected_s
    pace.wrote_away((HERE_S_MAX + SURELY_DISK_S) / 2)
    assert pace.expected_s == expected_s
    pace.wrote_away(SURELY_DISK_S)
    assert pace.expected_s > HERE_S_MAX
