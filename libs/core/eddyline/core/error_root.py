"""What every domain error is: a code, a stable reason, a message and its dynamic parts. The classes are in `errors.py`."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from eddyline.core.advice import advice_of


class Code(Enum):
    """Canonical codes, named as gRPC names them."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    ABORTED = "ABORTED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"
    DATA_LOSS = "DATA_LOSS"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    INTERNAL = "INTERNAL"
    UNIMPLEMENTED = "UNIMPLEMENTED"


class EddylineError(Exception):
    """Root of every error that a caller may see.

    `field` in the metadata names the request field that is wrong; `retryAfterMs` asks for a retry after that time.
    """

    code: ClassVar[Code] = Code.INTERNAL
    reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, **metadata: str | int) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items()}
        self.came_as: object = None
        """As another role put it on the wire, where it is passed on; only `eddyline.core.transport.status` looks inside."""
        self.unanswered = False
        """True = the peer itself said nothing: the message is gRPC's, of a connection or a deadline."""

    @property
    def advice(self) -> str:
        """What to do about it, as the command says it; empty = nothing is known."""
        return advice_of(self.reason, self.metadata)

    def _number(self, key: str) -> int:
        return int(self.metadata.get(key, "0"))
