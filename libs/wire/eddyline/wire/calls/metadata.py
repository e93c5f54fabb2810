"""gRPC's header fields (PROTOCOL-HTTP2.md): metadata, the status and its message, timeouts.

Keys that end in `-bin` carry base64, padded or not; one field may hold several values between commas. A status message is
UTF-8 with every byte outside of printable ASCII, and `%`, as `%XX`.
Failure: `MalformedMetadata` for what a peer sent; ValueError for what a handler gave.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.wire.http2.hpack import STATUS_200, encode_field

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from eddyline.wire.http2.hpack import Field

CONTENT_TYPE: Final = b"application/grpc"
_NOT_METADATA: Final = frozenset(
    (b"te", b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding")
)
_KEY: Final = re.compile(r"[0-9a-z_.\-]+").fullmatch
_VALUE: Final = re.compile(r"[ -~]*").fullmatch
_NOT_PLAIN: Final = re.compile(rb"[^ -$&-~]")
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])").fullmatch
_UNIT_S: Final = {b"H": 3_600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_FIELD_BYTES: Final = 32
"""Added to a field in the size of a header list (RFC 9113, 6.5.2)."""
_OWN_BYTES: Final = sum(
    len(name) + len(value) + _FIELD_BYTES
    for name, value in (
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "16"),
        ("grpc-message", ""),
    )
)
"""Size of a header list with a status and an empty message."""
MESSAGE_LIST_BYTES_MAX: Final = 8 << 10
"""Of trailers whose message is cut. gRPC's core refuses larger ones at random up to the 16 KiB that it announces."""
_CUT_ESCAPE: Final = re.compile(rb"%[0-9A-F]?\Z")
_RESERVED: Final = _NOT_METADATA | {b"grpc-status", b"grpc-message"}


class MalformedMetadata(Exception):
    """Base64 or a timeout that cannot be read."""


class Metadatum(NamedTuple):
    """A key and its value: bytes for keys that end in `-bin`."""

    key: str
    value: str | bytes


def decode_metadata(fields: Iterable[Field]) -> tuple[Metadatum, ...]:
    """Return a request's metadata, without what belongs to HTTP/2 and gRPC themselves.

    Raises:
        MalformedMetadata: a binary value is not base64.
    """
    metadata: list[Metadatum] = []
    for name, value in fields:
        if name[:1] == b":" or name in _NOT_METADATA:
            continue
        key = name.decode("latin-1")
        if name.endswith(b"-bin"):
            metadata.extend(Metadatum(key, _decode_binary(part)) for part in value.split(b","))
        else:
            metadata.append(Metadatum(key, _decode_text(value)))
    return tuple(metadata)


def _decode_binary(value: bytes) -> bytes:
    value = value.strip()
    try:
        return b64decode(value.rstrip(b"=") + b"=" * (-len(value.rstrip(b"=")) % 4), validate=True)
    except ValueError:
        raise MalformedMetadata("a binary value of the metadata is not base64") from None


def _decode_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def encode_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> bytes:
    """Return a handler's metadata as header fields.

    Raises:
        ValueError: a key or a value cannot be sent.
    """
    return b"".join(encode_field(*_encoded(key, value)) for key, value in metadata)


def _encoded(key: str, value: str | bytes) -> tuple[bytes, bytes]:
    if _KEY(key) is None or key.encode() in _RESERVED:
        raise ValueError(f"{key!r} is not a key of metadata")
    if key.endswith("-bin"):
        if not isinstance(value, bytes):
            raise ValueError(f"the value of {key} is not bytes")
        return key.encode(), b64encode(value).rstrip(b"=")
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if _VALUE(text) is None:
        raise ValueError(f"the value of {key} has characters other than printable ASCII")
    return key.encode(), text.encode()


def encode_message(message: str) -> bytes:
    """Return a status message percent-encoded."""
    data = message.encode("utf-8", "replace")
    return _NOT_PLAIN.sub(lambda match: b"%%%02X" % match[0][0], data)


def decode_timeout(value: bytes) -> float:
    """Return a grpc-timeout in seconds: one to eight digits and a unit.

    Raises:
        MalformedMetadata: it is none.
    """
    match = _TIMEOUT(value)
    if match is None:
        raise MalformedMetadata("grpc-timeout is malformed")
    return int(match[1]) * _UNIT_S[match[2]]


HEADERS_BLOCK: Final = STATUS_200 + encode_field(b"content-type", CONTENT_TYPE)
"""The response's header fields without metadata."""
OK_BLOCK: Final = encode_field(b"grpc-status", b"0")
"""The trailers of a call that succeeded, without metadata."""
ACCEPT_BLOCK: Final = encode_field(b"grpc-accept-encoding", b"identity")
"""Belongs to the status of a call with a compressed message: none is read here."""


def encode_trailers(code: int, message: str, metadata: Sequence[tuple[str, str | bytes]], *, bytes_max: int) -> bytes:
    """Return the trailers of a call.

    Above `bytes_max`, which the peer set for a header list, the metadata is left out, or else the message is cut: a client
    that gets more reports neither.

    Raises:
        ValueError: the metadata cannot be sent.
    """
    status = encode_field(b"grpc-status", b"%d" % code)
    extra = encode_metadata(metadata)
    extra_bytes = len(extra) + _FIELD_BYTES * len(metadata)
    if extra_bytes > bytes_max - _OWN_BYTES:
        extra, extra_bytes = b"", 0
    room = max(min(bytes_max, MESSAGE_LIST_BYTES_MAX) - _OWN_BYTES - extra_bytes, 0)
    encoded = encode_message(message)
    if len(encoded) > room:
        encoded = _CUT_ESCAPE.sub(b"", encoded[:room])
    return status + (encode_field(b"grpc-message", encoded) if encoded else b"") + extra
