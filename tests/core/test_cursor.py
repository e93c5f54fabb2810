"""Resume tokens: round trips, and what is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.cursor import (
    AFTER_KEY_BYTES_MAX,
    Cursor,
    Resume,
    ResumeState,
    ResumeTokens,
    WatchedTopic,
    WatchOption,
)
from eddyline.core.errors import ResumeTokenInvalid, ResumeTokenMismatch

U64 = st.integers(0, 2**64 - 1)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True)
TEXTS = st.lists(st.text(max_size=3), max_size=2).map(tuple)
WATCHED = st.lists(
    st.builds(
        WatchedTopic,
        NAMES,
        st.lists(st.binary(max_size=4), max_size=3).map(tuple),
        tags=TEXTS,
        exclude_nodes=TEXTS,
        options=st.integers(0, 15).map(WatchOption),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda one: one.topic,
)
PLACES = st.one_of(
    st.just((0, 0, ResumeState.START)),
    st.tuples(st.integers(1, 2**64 - 1), U64, st.sampled_from((ResumeState.SNAPSHOT, ResumeState.LOG))),
    st.tuples(
        st.integers(1, 2**64 - 1), U64, st.just(ResumeState.KEYS), st.binary(min_size=1, max_size=AFTER_KEY_BYTES_MAX)
    ),
)
ONE = [WatchedTopic("orders", (b"a", b"b"))]


def at(
    topic: str, epoch: int = 5, seq: int = 9, state: ResumeState = ResumeState.LOG, after_key: bytes = b""
) -> Resume:
    return Resume(Cursor(topic, epoch, seq), state, after_key)


def turned(one: WatchedTopic) -> WatchedTopic:
    """The same, written in another order."""
    return one._replace(
        key_prefixes=tuple(reversed(one.key_prefixes)),
        tags=(*reversed(one.tags), *one.tags),
        exclude_nodes=tuple(reversed(one.exclude_nodes)),
    )


def canonical(watched: list[WatchedTopic]) -> set[object]:
    """What a token is bound to."""
    return {
        (one.topic, frozenset(one.key_prefixes), frozenset(one.tags), frozenset(one.exclude_nodes), one.options)
        for one in watched
    }


@given(watched=WATCHED, data=st.data())
def test_a_token_gives_back_every_position_in_whatever_order_the_topics_are_named(
    watched: list[WatchedTopic], data: st.DataObject
) -> None:
    positions = {one.topic: at(one.topic, *data.draw(PLACES)) for one in watched}
    token = ResumeTokens(watched).encode(positions)
    other_order = [turned(one) for one in data.draw(st.permutations(watched))]
    assert ResumeTokens(other_order).decode(token) == positions


@given(watched=WATCHED, other=WATCHED)
def test_a_token_of_another_watch_is_a_mismatch(watched: list[WatchedTopic], other: list[WatchedTopic]) -> None:
    token = ResumeTokens(watched).encode({one.topic: at(one.topic) for one in watched})
    if canonical(watched) == canonical(other):
        ResumeTokens(other).decode(token)
    else:
        with pytest.raises(ResumeTokenMismatch):
            ResumeTokens(other).decode(token)


@pytest.mark.parametrize(
    "changed",
    [
        {"key_prefixes": (b"a",)},
        {"tags": ("t",)},
        {"exclude_nodes": ("t",)},
        *({"options": option} for option in WatchOption),
    ],
    ids=str,
)
def test_every_filter_and_option_is_part_of_what_a_token_is_bound_to(changed: dict[str, object]) -> None:
    token = ResumeTokens([WatchedTopic("orders"), WatchedTopic("other")]).encode(
        {"orders": at("orders"), "other": at("other")}
    )
    orders = WatchedTopic("orders")._replace(**changed)  # type: ignore[arg-type]
    with pytest.raises(ResumeTokenMismatch):
        ResumeTokens([orders, WatchedTopic("other")]).decode(token)


@given(token=st.binary(max_size=80))
def test_random_bytes_are_refused(token: bytes) -> None:
    with pytest.raises((ResumeTokenInvalid, ResumeTokenMismatch)):
        ResumeTokens(ONE).decode(token)


@given(data=st.data())
def test_a_token_that_was_cut_or_grew_is_invalid(data: st.DataObject) -> None:
    tokens = ResumeTokens(ONE)
    token = tokens.encode({"orders": at("orders")})
    changed = data.draw(
        st.one_of(
            st.integers(0, len(token) - 1).map(lambda end: token[:end]),
            st.binary(min_size=1, max_size=40).map(lambda more: token + more),
        )
    )
    with pytest.raises(ResumeTokenInvalid):
        tokens.decode(changed)


@pytest.mark.parametrize(
    ("epoch", "seq", "state"), [(5, 9, 3), (5, 9, 255), (5, 0, 0), (0, 9, 0), (0, 0, 1), (0, 9, 2)]
)
def test_an_entry_that_cannot_be_ours_is_invalid(epoch: int, seq: int, state: int) -> None:
    tokens = ResumeTokens(ONE)
    token = tokens.encode({"orders": at("orders")})
    with pytest.raises(ResumeTokenInvalid):
        tokens.decode(token[:9] + struct.pack("<QQB", epoch, seq, state))


def test_another_version_is_invalid_even_with_the_right_fingerprint() -> None:
    tokens = ResumeTokens(ONE)
    token = tokens.encode({"orders": at("orders")})
    with pytest.raises(ResumeTokenInvalid, match="version"):
        tokens.decode(b"\x02" + token[1:])


def test_the_bytes_of_a_token_are_fixed() -> None:
    # Tokens outlive the process that gave them: a change here needs another version.
    token = ResumeTokens(ONE).encode({"orders": at("orders")})
    assert token.hex() == "0130fccdcccb999a820500000000000000090000000000000002"
    token = ResumeTokens(ONE).encode({"orders": at("orders", state=ResumeState.KEYS, after_key=b"k\xff")})
    assert token.hex() == "0130fccdcccb999a8205000000000000000900000000000000030200" + "6bff"


@pytest.mark.parametrize("key", [b"", b"x" * (AFTER_KEY_BYTES_MAX + 1)], ids=["empty", "long"])
def test_a_snapshot_key_out_of_its_bounds_is_invalid(key: bytes) -> None:
    tokens = ResumeTokens(ONE)
    token = tokens.encode({"orders": at("orders")})
    with pytest.raises(ResumeTokenInvalid, match="key"):
        tokens.decode(token[:9] + struct.pack("<QQBH", 5, 9, 3, len(key)) + key)


def test_a_thousand_topics_fit() -> None:
    watched = [WatchedTopic(f"topic-{number}") for number in range(1000)]
    tokens = ResumeTokens(watched)
    positions = {one.topic: at(one.topic) for one in watched}
    token = tokens.encode(positions)
    assert len(token) == 9 + 17 * 1000
    assert tokens.decode(token) == positions
