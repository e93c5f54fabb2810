"""Error codes of HTTP/2 (RFC 9113, 7), and the end of a connection by one of them."""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """The code of a RST_STREAM or GOAWAY frame."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class ConnectionFailed(Exception):
    """The connection cannot go on (RFC 9113, 5.4.1). `code` and the message go to the peer in a GOAWAY frame."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
