"""gRPC's header fields: metadata, percent-coding, timeouts and the size of trailers."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.wire.calls.metadata import (
    MalformedMetadata,
    decode_metadata,
    decode_timeout,
    encode_message,
    encode_metadata,
    encode_trailers,
)
from eddyline.wire.http2.hpack import BlockDecoder, Field
from eddyline.wire.http2.limits import Limits


def decoded(block: bytes) -> dict[bytes, bytes]:
    return dict(BlockDecoder(list_bytes_max=Limits().header_list_bytes_max * 4).decode(block).fields)


@given(st.binary(max_size=60), st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60))
def test_metadata_comes_back_as_it_was(binary: bytes, text: str) -> None:
    block = encode_metadata((("a-bin", binary), ("b", text)))
    fields = BlockDecoder(list_bytes_max=10_000).decode(block).fields
    assert decode_metadata(fields) == (("a-bin", binary), ("b", text))


def test_fields_of_http2_and_grpc_are_no_metadata() -> None:
    names = (b":path", b"te", b"content-type", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding")
    fields = [*(Field(name, b"x") for name in names), Field(b"user-agent", b"me")]
    assert decode_metadata(fields) == (("user-agent", "me"),)


@pytest.mark.parametrize("value", [b"AAE", b"AAE=", b" AAE= "])
def test_base64_is_read_padded_or_not(value: bytes) -> None:
    assert decode_metadata([Field(b"a-bin", value)]) == (("a-bin", b"\0\1"),)


def test_binary_values_between_commas_are_several() -> None:
    assert decode_metadata([Field(b"a-bin", b"AAE,AgM=")]) == (("a-bin", b"\0\1"), ("a-bin", b"\2\3"))


def test_a_binary_value_that_is_not_base64_is_malformed() -> None:
    with pytest.raises(MalformedMetadata):
        decode_metadata([Field(b"a-bin", b"!!")])


@pytest.mark.parametrize(
    "pair",
    [
        ("Upper", "x"),
        ("", "x"),
        ("a b", "x"),
        (":path", "x"),
        ("grpc-status", "0"),
        ("a", "line\nbreak"),
        ("a", "ü"),
        ("a-bin", "text"),
    ],
)
def test_metadata_that_cannot_be_sent_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"key|value"):
        encode_metadata([pair])


@given(st.text(max_size=80))
def test_a_message_is_printable_ascii_and_comes_back(message: str) -> None:
    encoded = encode_message(message)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert unquote_to_bytes(encoded) == message.encode("utf-8", "replace")


def test_the_message_of_the_interop_case_is_coded_as_the_protocol_says() -> None:
    assert encode_message("\t\ntest with whitespace\r\n%") == b"%09%0Atest with whitespace%0D%0A%25"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"1H", 3_600), (b"2M", 120), (b"3S", 3), (b"4m", 0.004), (b"5u", 5e-6), (b"6n", 6e-9), (b"0S", 0)],
)
def test_timeouts_are_read_in_all_units(value: bytes, seconds: float) -> None:
    assert decode_timeout(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [b"", b"1", b"S", b"-1S", b"1s", b"1 S", b"123456789S", b"1.5S", b"1S\n"])
def test_a_malformed_timeout_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedMetadata):
        decode_timeout(value)


def test_eight_digits_of_hours_are_read() -> None:
    assert decode_timeout(b"99999999H") == 99_999_999 * 3_600


def test_trailers_that_a_client_would_not_take_are_cut() -> None:
    metadata = (("a", "x" * 900),)
    whole = decoded(encode_trailers(13, "why" * 10, metadata, bytes_max=4_000))
    assert (whole[b"grpc-status"], whole[b"grpc-message"], len(whole[b"a"])) == (b"13", b"why" * 10, 900)
    without = decoded(encode_trailers(13, "why", metadata, bytes_max=600))
    assert without == {b"grpc-status": b"13", b"grpc-message": b"why"}
    cut = decoded(encode_trailers(13, "ü" * 1_000, (), bytes_max=600))
    assert 300 < len(cut[b"grpc-message"]) < 600
    unquote_to_bytes(cut[b"grpc-message"]).decode("utf-8", "ignore")
    assert cut[b"grpc-message"].count(b"%") * 3 == len(cut[b"grpc-message"])
