"""Resume tokens: round trips, and refusals."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from eddyline.core.errors import ResumeTokenInvalid, ResumeTokenMismatch
from eddyline.delivery.resume_token import (
    AFTER_KEY_BYTES_MAX,
    Cursor,
    Resume,
    ResumeState,
    ResumeTokens,
    TopicSignature,
    WatchOption,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

U64 = st.integers(0, 2**64 - 1)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True)
TEXTS = st.lists(st.text(max_size=3), max_size=2).map(tuple)
WATCHED = st.lists(
    st.builds(
        TopicSignature,
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
SHORT_PLACES = PLACES.map(lambda place: (*place[:3], place[3][:4]) if len(place) > 3 else place)
ONE = [TopicSignature("orders", (b"a", b"b"))]


def at(
    topic: str, epoch: int = 5, seq: int = 9, state: ResumeState = ResumeState.LOG, after_key: bytes = b""
) -> Resume:
    return Resume(Cursor(topic, epoch, seq), state, after_key)


def turned(one: TopicSignature) -> TopicSignature:
    """Return an equal signature, its values in another order."""
    return one._replace(
        key_prefixes=tuple(reversed(one.key_prefixes)),
        tags=(*reversed(one.tags), *one.tags),
        exclude_nodes=tuple(reversed(one.exclude_nodes)),
    )


def canonical(one: TopicSignature) -> object:
    """Generate the signatures of a watch."""
    return (one.topic, frozenset(one.key_prefixes), frozenset(one.tags), frozenset(one.exclude_nodes), one.options)


def with_all(watched: list[TopicSignature], shared: list[TopicSignature]) -> list[TopicSignature]:
    """Return signatures with `shared` in place of those of the same names."""
    return list(({one.topic: one for one in watched} | {one.topic: one for one in shared}).values())


def sealed(body: bytes) -> bytes:
    """Return a token with a correct checksum."""
    return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))


def first_version(watched: list[TopicSignature], entries: list[bytes]) -> bytes:
    """Return a token of the first version."""
    wishes = bytearray()
    for one in sorted(watched, key=lambda one: one.topic.encode()):
        wishes += _text(one.topic.encode(), "<H") + _list(one.key_prefixes)
        if one.tags or one.exclude_nodes or one.options:
            wishes += bytes(2) + _list([tag.encode() for tag in one.tags])
            wishes += _list([node.encode() for node in one.exclude_nodes]) + bytes([one.options])
    return struct.pack("<BQ", 1, xxhash.xxh3_64_intdigest(bytes(wishes))) + b"".join(entries)


def _text(value: bytes, size: str) -> bytes:
    return struct.pack(size, len(value)) + value


def _list(values: Sequence[bytes]) -> bytes:
    distinct = sorted(set(values))
    return struct.pack("<I", len(distinct)) + b"".join(_text(value, "<I") for value in distinct)


def entry_of(resume: Resume) -> bytes:
    """Return one position, in the encoding of both versions."""
    key = _text(resume.after_key, "<H") if resume.state is ResumeState.KEYS else b""
    return struct.pack("<QQB", resume.cursor.epoch, resume.cursor.seq, resume.state) + key


@given(watched=WATCHED, data=st.data())
def test_a_token_has_every_position_independent_of_the_order_of_topics(
    watched: list[TopicSignature], data: st.DataObject
) -> None:
    positions = {one.topic: at(one.topic, *data.draw(PLACES)) for one in watched}
    token = ResumeTokens(watched).encode(positions)
    other_order = [turned(one) for one in data.draw(st.permutations(watched))]
    assert ResumeTokens(other_order).decode(token) == positions


@given(watched=WATCHED, data=st.data())
def test_a_token_of_the_first_version_is_read(watched: list[TopicSignature], data: st.DataObject) -> None:
    positions = {one.topic: at(one.topic, *data.draw(PLACES)) for one in watched}
    names = sorted(positions, key=str.encode)
    token = first_version(watched, [entry_of(positions[name]) for name in names])
    assert ResumeTokens(map(turned, watched)).decode(token) == positions
    for other in ([*watched, TopicSignature("~another")], watched[1:]):
        if other:
            with pytest.raises(ResumeTokenMismatch):
                ResumeTokens(other).decode(token)


@given(watched=WATCHED, other=WATCHED, shared=WATCHED, data=st.data())
def test_a_token_applies_to_each_common_topic_with_the_same_filters(
    watched: list[TopicSignature], other: list[TopicSignature], shared: list[TopicSignature], data: st.DataObject
) -> None:
    if data.draw(st.booleans()):
        watched, other = with_all(watched, shared), with_all(other, shared)
    positions = {one.topic: at(one.topic, *data.draw(PLACES)) for one in watched}
    token = ResumeTokens(watched).encode(positions)
    ours = {one.topic: canonical(one) for one in watched}
    both = [one for one in other if one.topic in ours]
    if both and all(canonical(one) == ours[one.topic] for one in both):
        assert ResumeTokens(other).decode(token) == {one.topic: positions[one.topic] for one in both}
    else:
        with pytest.raises(ResumeTokenMismatch):
            ResumeTokens(other).decode(token)


@settings(max_examples=25)
@given(watched=WATCHED, data=st.data())
def test_a_token_with_any_bit_changed_is_invalid(watched: list[TopicSignature], data: st.DataObject) -> None:
    tokens = ResumeTokens(watched)
    token = tokens.encode({one.topic: at(one.topic, *data.draw(SHORT_PLACES)) for one in watched})
    for bit in range(8 * len(token)):
        damaged = bytearray(token)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ResumeTokenInvalid):
            tokens.decode(bytes(damaged))


@given(watched=WATCHED, data=st.data())
def test_a_token_with_anything_changed_is_invalid(watched: list[TopicSignature], data: st.DataObject) -> None:
    tokens = ResumeTokens(watched)
    token = tokens.encode({one.topic: at(one.topic, *data.draw(PLACES)) for one in watched})
    start = data.draw(st.integers(0, len(token) - 1))
    piece = data.draw(st.binary(min_size=1, max_size=12))
    damaged = token[:start] + piece + token[start + len(piece) :]
    if damaged != token:
        with pytest.raises(ResumeTokenInvalid):
            tokens.decode(damaged)


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
def test_a_token_is_bound_to_every_filter_and_option(changed: dict[str, object]) -> None:
    token = ResumeTokens([TopicSignature("orders"), TopicSignature("other")]).encode(
        {"orders": at("orders"), "other": at("other")}
    )
    orders = TopicSignature("orders")._replace(**changed)  # type: ignore[arg-type]
    with pytest.raises(ResumeTokenMismatch):
        ResumeTokens([orders, TopicSignature("other")]).decode(token)


@given(token=st.binary(max_size=80))
def test_random_bytes_are_refused(token: bytes) -> None:
    with pytest.raises((ResumeTokenInvalid, ResumeTokenMismatch)):
        ResumeTokens(ONE).decode(token)


@given(data=st.data())
def test_a_token_cut_or_extended_is_invalid(data: st.DataObject) -> None:
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
def test_an_impossible_entry_is_invalid(epoch: int, seq: int, state: int) -> None:
    tokens = ResumeTokens(ONE)
    token = tokens.encode({"orders": at("orders")})
    with pytest.raises(ResumeTokenInvalid):
        tokens.decode(sealed(token[:17] + struct.pack("<QQB", epoch, seq, state)))
    with pytest.raises(ResumeTokenInvalid):
        tokens.decode(first_version(ONE, [struct.pack("<QQB", epoch, seq, state)]))


def test_a_topic_that_is_in_a_token_twice_is_invalid() -> None:
    tokens = ResumeTokens(ONE)
    token = tokens.encode({"orders": at("orders")})
    with pytest.raises(ResumeTokenInvalid):
        tokens.decode(sealed(token[:-8] + token[1:-8]))


def test_another_version_is_invalid_even_with_the_right_checksum() -> None:
    tokens = ResumeTokens(ONE)
    token = tokens.encode({"orders": at("orders")})
    with pytest.raises(ResumeTokenInvalid, match="version"):
        tokens.decode(sealed(b"\x03" + token[1:-8]))


def test_the_bytes_of_a_token_are_fixed() -> None:
    # Tokens outlive the process that made them: a change here needs another version.
    first = {"orders": at("orders")}
    keys = {"orders": at("orders", state=ResumeState.KEYS, after_key=b"k\xff")}
    tokens = ResumeTokens(ONE)
    assert (
        tokens.encode(first).hex()
        == "02fb7449fac9cd8ca830fccdcccb999a8205000000000000000900000000000000029b6295e8b7503943"
    )
    assert (
        tokens.encode(keys).hex()
        == "02fb7449fac9cd8ca830fccdcccb999a82050000000000000009000000000000000302006bff6d4912df6e36610f"
    )
    assert tokens.decode(bytes.fromhex("0130fccdcccb999a820500000000000000090000000000000002")) == first
    assert tokens.decode(bytes.fromhex("0130fccdcccb999a82050000000000000009000000000000000302006bff")) == keys


@pytest.mark.parametrize("key", [b"", b"x" * (AFTER_KEY_BYTES_MAX + 1)], ids=["empty", "long"])
def test_a_snapshot_key_out_of_its_bounds_is_invalid(key: bytes) -> None:
    tokens = ResumeTokens(ONE)
    token = tokens.encode({"orders": at("orders")})
    with pytest.raises(ResumeTokenInvalid, match="key"):
        tokens.decode(sealed(token[:17] + struct.pack("<QQBH", 5, 9, 3, len(key)) + key))


def test_a_thousand_topics_fit() -> None:
    watched = [TopicSignature(f"topic-{number}") for number in range(1000)]
    tokens = ResumeTokens(watched)
    positions = {one.topic: at(one.topic) for one in watched}
    token = tokens.encode(positions)
    assert len(token) == 1 + 33 * 1000 + 8
    assert tokens.decode(token) == positions
