"""Domain errors to `google.rpc.Status` and back: the only module that knows gRPC's codes.

Owns the mapping of `eddyline.core.errors` to a code, a message and a `grpc-status-details-bin` trailer with exactly one
`ErrorInfo` of the domain `eddyline`, a `RetryInfo` if the metadata has `retryAfterMs`, a `BadRequest` if it names a
`field`. `unwrap` returns the error of the same class, with its metadata. A status without our `ErrorInfo` comes from gRPC
itself rather than from a role: UNAVAILABLE and CANCELLED (the peer broke off) become the class that the caller names,
`NotReady` by default, `StoreUnreachable` in the store's link; DEADLINE_EXCEEDED becomes `Deadline`; any other an
`EddylineError` of that code. An unknown reason, from a newer peer, becomes an `EddylineError` with that code and reason.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # no py.typed in it

from eddyline.core.advice import NOT_GRPC
from eddyline.core.errors import CLASS_BY_REASON, Code, Deadline, EddylineError, NotReady

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DOMAIN: Final = "eddyline"
DETAILS_KEY: Final = "grpc-status-details-bin"

MESSAGE_BYTES_MAX: Final = 1024
"""gRPC refuses metadata above 8 KiB (its default, which clients in other languages keep), and the caller would then see no
error of ours. The message travels twice: percent-encoded (3 KiB at worst) and in the details (1.4 KiB)."""
VALUE_CHARS_MAX: Final = 2048
"""A key of 1 KiB in hex, the longest value an error has: 2.8 KiB in base64, so that all fits into the 8 KiB."""

_WIRE_CODES: Final = {code: grpc.StatusCode[code.value] for code in Code}
_CODES: Final = {wire: code for code, wire in _WIRE_CODES.items()}
_CODES_BY_NUMBER: Final = {wire.value[0]: code for wire, code in _CODES.items()}
_TRANSPORT: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_BROKEN_OFF: Final = ("Internal error from Core", "Received RST_STREAM")
"""Messages of grpc.aio, with INTERNAL, for a call whose connection broke while it was being written to. A defect of our
roles always has an `ErrorInfo`."""
_OTHER_PROTOCOL: Final = re.compile(r"ipv[46]:(\S+): Failed parsing HTTP/2")
"""gRPC's text for a peer whose first bytes are no HTTP/2, e.g. a NATS server or an HTTP/1 one."""


class WireStatus(NamedTuple):
    """Arguments of `context.abort`."""

    code: grpc.StatusCode
    message: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


class ErrorParts(NamedTuple):
    """An error as plain values; `code` is the number of its canonical code."""

    code: int
    reason: str
    message: str
    metadata: Mapping[str, str]


def to_status(error: EddylineError) -> WireStatus:
    """Return the status of an error. Message and metadata values are cut to their bounds, never the reason; the error of
    another role keeps the status it came with."""
    if isinstance(error.came_as, WireStatus):
        return error.came_as
    code = _WIRE_CODES[error.code]
    message = _cut(error.message)
    metadata = {key: value[:VALUE_CHARS_MAX] for key, value in error.metadata.items()}
    status = status_pb2.Status(code=_number(code), message=message)
    _pack(status, error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata))
    retry_after_ms = metadata.get("retryAfterMs", "")
    if retry_after_ms.isdecimal():
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(int(retry_after_ms))
        _pack(status, error_details_pb2.RetryInfo(retry_delay=delay))
    if "field" in metadata:
        violation = error_details_pb2.BadRequest.FieldViolation(field=metadata["field"], description=message)
        _pack(status, error_details_pb2.BadRequest(field_violations=[violation]))
    return WireStatus(code, message, ((DETAILS_KEY, status.SerializeToString()),))


def unwrap(error: grpc.aio.AioRpcError, *, unreachable: type[EddylineError] = NotReady) -> EddylineError:
    """Return the domain error that a peer raised; `unreachable` is the class for a peer that did not answer."""
    info = _error_info(error.trailing_metadata() or ())
    message = error.details() or error.code().name
    if info is None:
        return _error_of_grpc(error.code(), message, unreachable)
    return _error_of_reason(_CODES.get(error.code(), Code.INTERNAL), info.reason, message, info.metadata)


def passed_on(error: grpc.aio.AioRpcError, *, unreachable: type[EddylineError]) -> EddylineError:
    """Like `unwrap`, for a role that forwards a call: a status of the peer is passed on unchanged, with its details."""
    forwarded = unwrap(error, unreachable=unreachable)
    trailing = tuple(error.trailing_metadata() or ())
    if _error_info(trailing) is not None:
        forwarded.came_as = WireStatus(error.code(), error.details() or "", trailing)
    return forwarded


def to_parts(error: EddylineError) -> ErrorParts:
    """Return an error as the fields of a message, for an answer that has the errors of several requests: as `to_status`,
    with the same bounds."""
    metadata = {key: value[:VALUE_CHARS_MAX] for key, value in error.metadata.items()}
    return ErrorParts(_number(_WIRE_CODES[error.code]), error.reason, _cut(error.message), metadata)


def from_parts(parts: ErrorParts) -> EddylineError:
    """Return the error that `to_parts` took apart. An unknown code counts as INTERNAL."""
    return _error_of_reason(
        _CODES_BY_NUMBER.get(parts.code, Code.INTERNAL), parts.reason, parts.message, parts.metadata
    )


def _error_of_reason(code: Code, reason: str, message: str, metadata: Mapping[str, str]) -> EddylineError:
    error_class = CLASS_BY_REASON.get(reason)
    if error_class is None:
        error_class = _unknown_class(code, reason)
    return error_class(message, **dict(metadata))


def _error_of_grpc(code: grpc.StatusCode, message: str, unreachable: type[EddylineError]) -> EddylineError:
    if code in _TRANSPORT or (code is grpc.StatusCode.INTERNAL and message.startswith(_BROKEN_OFF)):
        return _unanswered(unreachable(_plain(message)))
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return _unanswered(Deadline(message))
    return _unknown_class(_CODES.get(code, Code.INTERNAL), code.name)(message)


def _plain(message: str) -> str:
    """Return gRPC's message, replaced by one plain sentence where the port is of another protocol."""
    other = _OTHER_PROTOCOL.search(message)
    if other is None:
        return message
    return f"the port {other[1].replace('%5B', '[').replace('%5D', ']')} {NOT_GRPC}"


def _unanswered(error: EddylineError) -> EddylineError:
    error.unanswered = True
    return error


def _error_info(trailing_metadata: Iterable[tuple[str, str | bytes]]) -> error_details_pb2.ErrorInfo | None:
    for key, value in trailing_metadata:
        if key != DETAILS_KEY or not isinstance(value, bytes):
            continue
        info = error_details_pb2.ErrorInfo()
        try:
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(info) and info.domain == DOMAIN:
                    return info
        except DecodeError:
            return None
    return None


@lru_cache(maxsize=256)
def _unknown_class(code: Code, reason: str) -> type[EddylineError]:
    # Code and reason are attributes of the class, so each pair needs a class; the cache bounds their number.
    return type("UnknownError", (EddylineError,), {"code": code, "reason": reason, "__doc__": EddylineError.__doc__})


def _pack(
    status: status_pb2.Status,
    detail: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo | error_details_pb2.BadRequest,
) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)
    status.details.append(packed)


def _number(code: grpc.StatusCode) -> int:
    number, _name = code.value
    return int(number)


def _cut(message: str) -> str:
    encoded = message.encode("utf-8", "replace")
    if len(encoded) <= MESSAGE_BYTES_MAX:
        return encoded.decode("utf-8")
    return encoded[: MESSAGE_BYTES_MAX - 3].decode("utf-8", "ignore") + "…"
