"""Which header fields make a request."""

from __future__ import annotations

import pytest

from eddyline.wire.http2.hpack import Field
from eddyline.wire.http2.request import is_valid_trailer, parse_request

PSEUDO = (Field(b":method", b"POST"), Field(b":scheme", b"http"), Field(b":path", b"/a/B"))


def test_fields_of_a_request_are_parsed() -> None:
    more = (
        Field(b"te", b"trailers"),
        Field(b"content-type", b"application/grpc"),
        Field(b"grpc-timeout", b"1S"),
        Field(b"content-length", b"12"),
    )
    request = parse_request((*PSEUDO, *more))
    assert request is not None
    assert (request.method, request.path, request.timeout) == (b"POST", b"/a/B", b"1S")
    assert (request.content_type, request.content_length) == (b"application/grpc", 12)


@pytest.mark.parametrize(
    "fields",
    [
        PSEUDO[:2],
        (*PSEUDO, PSEUDO[0]),
        (*PSEUDO, Field(b":status", b"200")),
        (PSEUDO[0], Field(b"a", b"b"), *PSEUDO[1:]),
        (*PSEUDO[:2], Field(b":path", b"")),
        *(
            (*PSEUDO, Field(name, value))
            for name, value in [
                (b"Upper", b""),
                (b"", b""),
                (b"a b", b""),
                (b"connection", b"close"),
                (b"transfer-encoding", b"chunked"),
                (b"te", b"gzip"),
                (b"content-length", b"-1"),
                (b"content-length", b"9" * 30),
                (b"a", b"x\r\ny"),
                (b"a", b"x\0"),
            ]
        ),
        (*PSEUDO, Field(b"content-length", b"1"), Field(b"content-length", b"2")),
    ],
)
def test_a_malformed_request_is_none(fields: tuple[Field, ...]) -> None:
    assert parse_request(fields) is None


def test_trailers_have_no_pseudo_fields() -> None:
    assert is_valid_trailer((Field(b"a", b"b"),))
    assert not is_valid_trailer((Field(b":path", b"/"),))
