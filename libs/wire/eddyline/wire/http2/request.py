"""A request's header fields, checked as RFC 9113, 8.2 and 8.3, has it: pseudo fields first, each once; no field of a
connection of HTTP/1; lower-case names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from eddyline.wire.http2.hpack import Field

_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_CONNECTION_FIELDS: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
"""A token of RFC 9110, 5.6.2, without upper case (8.2.1)."""
_FORBIDDEN_IN_VALUE: Final = re.compile(rb"[\x00\r\n]").search
"""8.2.1, but for spaces at the ends of a value, which clients of gRPC send in their metadata."""
_DIGITS_MAX: Final = 19


class Request:
    """A checked request. One object may serve many streams: equal blocks of a connection are parsed once.

    `fields` are all fields, pseudo fields included. `content_length` None = not stated. `cache` is a place for the layer
    above, for what depends on nothing but the connection and the fields, e.g. decoded metadata.
    """

    __slots__ = ("cache", "content_length", "content_type", "fields", "method", "path", "timeout")

    def __init__(self, fields: tuple[Field, ...], method: bytes, path: bytes) -> None:
        self.fields = fields
        self.method = method
        self.path = path
        self.content_type = b""
        self.content_length: int | None = None
        self.timeout: bytes | None = None
        self.cache: object = None


def parse_request(fields: tuple[Field, ...]) -> Request | None:
    """Return the request, or None if it is malformed: then its stream ends with PROTOCOL_ERROR (8.1.1)."""
    pseudo: dict[bytes, bytes] = {}
    regular_at = len(fields)
    for at, (name, value) in enumerate(fields):
        if name[:1] != b":":
            regular_at = at
            break
        if name not in _PSEUDO or name in pseudo or _FORBIDDEN_IN_VALUE(value):
            return None
        pseudo[name] = value
    method, path = pseudo.get(b":method"), pseudo.get(b":path")
    if not method or not path or not pseudo.get(b":scheme"):
        return None
    request = Request(fields, method, path)
    for name, value in fields[regular_at:]:
        if _NAME(name) is None or name in _CONNECTION_FIELDS or _FORBIDDEN_IN_VALUE(value):
            return None
        if name == b"grpc-timeout":
            request.timeout = value
        elif name == b"content-type":
            request.content_type = value
        elif name == b"te":
            if value != b"trailers":
                return None
        elif name == b"content-length":
            if not value.isdigit() or len(value) > _DIGITS_MAX or request.content_length not in (None, int(value)):
                return None
            request.content_length = int(value)
    return request


def is_valid_trailer(fields: tuple[Field, ...]) -> bool:
    """Return True if a request may end with these fields: none is a pseudo field (8.1)."""
    return all(_NAME(name) is not None and name not in _CONNECTION_FIELDS for name, _ in fields)
