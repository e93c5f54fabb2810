"""The header decoder against RFC 7541 and the `hpack` package, both ways, with evictions."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.wire.http2.errors import ConnectionFailed, ErrorCode
from eddyline.wire.http2.hpack import MEMO_BLOCKS_MAX, BlockDecoder, encode_field

LIST_BYTES = 1 << 20
NAMES = st.one_of(
    st.sampled_from([b":path", b":method", b"content-type", b"user-agent", b"grpc-timeout", b"x-a", b"x-b"]),
    st.binary(min_size=1, max_size=40),
)
VALUES = st.one_of(st.sampled_from([b"", b"GET", b"POST", b"application/grpc", b"x" * 200]), st.binary(max_size=300))
LISTS = st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=12), min_size=1, max_size=12)


def decoder() -> BlockDecoder:
    return BlockDecoder(list_bytes_max=LIST_BYTES)


def fields(block: bytes, with_decoder: BlockDecoder | None = None) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in (with_decoder or decoder()).decode(block).fields]


@given(LISTS, st.lists(st.sampled_from([0, 64, 100, 4_096, 1_000]), min_size=12, max_size=12), st.booleans())
def test_blocks_of_the_hpack_package_are_decoded_with_evictions(
    lists: list[list[tuple[bytes, bytes]]], sizes: list[int], huffman: bool
) -> None:
    encoder, ours = hpack.Encoder(), decoder()
    for sent, size in zip(lists, sizes, strict=False):
        encoder.header_table_size = size
        assert fields(encoder.encode(sent, huffman=huffman), ours) == sent


@given(st.lists(st.tuples(NAMES, VALUES), max_size=12))
def test_the_hpack_package_decodes_our_literals(sent: list[tuple[bytes, bytes]]) -> None:
    block = b"".join(encode_field(name, value) for name, value in sent)
    theirs = hpack.Decoder(max_header_list_size=LIST_BYTES)
    assert [tuple(field) for field in theirs.decode(block, raw=True)] == sent
    assert fields(block) == sent


@given(LISTS, st.data())
def test_a_mutated_block_fails_as_compression_or_gives_fields(
    lists: list[list[tuple[bytes, bytes]]], drawn: st.DataObject
) -> None:
    encoder, ours = hpack.Encoder(), decoder()
    for sent in lists:
        block = bytearray(encoder.encode(sent))
        for _ in range(drawn.draw(st.integers(0, 3)) if block else 0):
            block[drawn.draw(st.integers(0, len(block) - 1))] = drawn.draw(st.integers(0, 255))
        try:
            ours.decode(bytes(block))
        except ConnectionFailed as error:
            assert error.code is ErrorCode.COMPRESSION_ERROR
            return


def test_examples_of_the_rfc_with_a_dynamic_table_and_huffman_coding() -> None:
    ours = decoder()
    first = bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")  # C.4.1
    second = bytes.fromhex("828684be5886a8eb10649cbf")  # C.4.2
    third = bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf")  # C.4.3
    common = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
    assert fields(first, ours) == common
    assert fields(second, ours) == [*common, (b"cache-control", b"no-cache")]
    secure = [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/index.html"), common[3]]
    assert fields(third, ours) == [*secure, (b"custom-key", b"custom-value")]


def test_an_equal_block_gives_the_same_object_until_the_table_changes() -> None:
    ours = decoder()
    indexed = b"\x40\x01x\x01y"
    ours.decode(indexed)
    first = ours.decode(b"\xbe")
    assert ours.decode(b"\xbe") is first
    ours.decode(b"\x40\x01x\x01z")
    assert [field.value for field in ours.decode(b"\xbe").fields] == [b"z"]


def test_the_memo_is_bounded() -> None:
    ours = decoder()
    blocks = [encode_field(b"n", b"%d" % number) for number in range(MEMO_BLOCKS_MAX + 10)]
    first = [ours.decode(block) for block in blocks]
    again = [ours.decode(block) for block in blocks]
    kept = sum(one is other for one, other in zip(first, again, strict=True))
    assert kept == MEMO_BLOCKS_MAX


def test_an_entry_larger_than_the_table_empties_it() -> None:
    ours = decoder()
    ours.decode(b"\x40\x01x\x01y")
    large = b"y" * 5_000
    assert fields(b"\x40" + encode_field(b"x", large)[1:], ours) == [(b"x", large)]
    with pytest.raises(ConnectionFailed):
        ours.decode(b"\xbe")


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xbe",  # not in the table
        b"\xff\xff\xff\xff\xff\x7f",  # an integer of more than 28 bits
        b"\x00\x01x",  # no value
        b"\x00\x01x\x05y",  # a string that is cut
        b"\x82\x20",  # a size of the table after a field
        b"\x3f\xe2\x1f",  # a size of 4 097
        b"\x00\x01x\x81\x00",  # Huffman padding of zeroes
        b"\x00\x01x\x84\xff\xff\xff\xff",  # the end-of-string symbol
    ],
)
def test_a_malformed_block_fails_as_compression(block: bytes) -> None:
    with pytest.raises(ConnectionFailed) as failed:
        decoder().decode(block)
    assert failed.value.code is ErrorCode.COMPRESSION_ERROR


def test_a_list_above_its_bound_is_marked_and_the_table_stays_right() -> None:
    ours = BlockDecoder(list_bytes_max=8_000)
    bomb = b"\x40" + encode_field(b"x", b"y" * 3_900)[1:] + b"\xbe" * 12_000
    headers = ours.decode(bomb)
    assert headers.is_oversized
    assert len(headers.fields) == 2
    assert fields(b"\xbe", ours) == [(b"x", b"y" * 3_900)]
