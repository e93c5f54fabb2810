"""Messages of a request out of its bytes (gRPC over HTTP/2): one byte says whether it is compressed, four its length."""

from __future__ import annotations

from typing import Final

from eddyline.wire.http2.frames import unpack_u32

PREFIX_BYTES: Final = 5


class MessageRefused(Exception):
    """A message is compressed (`is_compressed`), or larger than the bound."""

    def __init__(self, message: str, *, is_compressed: bool) -> None:
        super().__init__(message)
        self.is_compressed = is_compressed


class Assembler:
    """Cuts one stream's bytes into messages. `held_bytes` = bytes of a message that is not complete, its prefix included.

    The work is linear in the bytes: parts are joined once, when the message is complete.
    """

    __slots__ = ("_due", "_message_bytes_max", "_parts", "held_bytes")

    def __init__(self, message_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._parts: list[bytes] = []
        self._due = PREFIX_BYTES
        """Bytes of the incomplete message from its beginning; of its prefix alone while that is incomplete."""
        self.held_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that `data` completes.

        Raises:
            MessageRefused: nothing must be fed after it.
        """
        if self.held_bytes:
            self._parts.append(data)
            self.held_bytes += len(data)
            if self.held_bytes < self._due:
                return []
            data = b"".join(self._parts)
            self._parts.clear()
            self.held_bytes = 0
        messages: list[bytes] = []
        at, size = 0, len(data)
        due = PREFIX_BYTES
        while size - at >= PREFIX_BYTES:
            due = PREFIX_BYTES + self._length(data, at)
            if size - at < due:
                break
            messages.append(data[at + PREFIX_BYTES : at + due])
            at += due
            due = PREFIX_BYTES
        if at < size:
            self._parts.append(data[at:])
            self.held_bytes = size - at
        self._due = due
        return messages

    def clear(self) -> None:
        """Drop the incomplete message; nothing must be fed after it."""
        self._parts.clear()
        self.held_bytes = 0

    def _length(self, data: bytes, at: int) -> int:
        (length,) = unpack_u32(data, at + 1)
        if data[at]:
            raise MessageRefused("compressed messages are not supported", is_compressed=True)
        if length > self._message_bytes_max:
            raise MessageRefused(
                f"Received message larger than max ({length} vs. {self._message_bytes_max})", is_compressed=False
            )
        return int(length)
