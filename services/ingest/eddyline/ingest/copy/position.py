"""A source's position at NATS: stream, revision, a sample of the message at the revision, and a time.

    position = u8 1, i64 created_ns, u64 revision, 16 bytes sample        little-endian, 33 bytes; no bytes = none yet
             | u8 2, the same, u64 resync_serial                         after a requested resync: 41 bytes
             | u8 3, the same, u64 resync_serial, i64 time_ns            49 bytes; the format written now

The stream's creation time reveals a recreated stream. Two fields reveal one that was rolled back and written again: the
sample, xxh3_128 of subject, a zero byte and data of the message at the revision; and the time by NATS's clock, which no
message up to the revision is younger than. If no message is there (the revision was lost or removed) the sample is eight
zero bytes and a serial number, and is not compared. Positions of the first two formats, which older versions wrote, have
no time: only the sample decides there, until the next message is applied.

The time is the latest of all applied messages, not that of the last one: NATS's clock may be set back, and a new leader's
may be behind, so that an older message is the younger one by its time.

`resync_serial` is that of the last requested resync that is done: it is stored in the frame that ends it, so that a crash
neither forgets nor repeats one.

I1: a position that follows another one differs from it in its bytes, also if the revision stays (synthetic deletes change
the fold and nothing at NATS): the store takes a batch whose new position is the stored one for a retry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from struct import Struct
from typing import Final

from xxhash import xxh3_128_digest

from eddyline.core.errors import InvalidArgument

_LAYOUT: Final = Struct("<BqQ16s")
_SERIAL: Final = Struct("<Q")
_FORMAT: Final = 1
_SERIAL_FORMAT: Final = 2
_TIME: Final = Struct("<Qq")
_TIME_FORMAT: Final = 3
_SIZES: Final = {
    _FORMAT: _LAYOUT.size,
    _SERIAL_FORMAT: _LAYOUT.size + _SERIAL.size,
    _TIME_FORMAT: _LAYOUT.size + _TIME.size,
}
_UNCHECKED: Final = bytes(8)
"""Start of a sample that is not compared. One real hash in 2^64 begins so, and is then not compared, which is harmless."""

NO_TIME: Final = 0


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Everything up to `revision` (inclusive) of the stream created at `created_ns` is applied.

    `time_ns` = no message up to the revision is younger, by NATS's clock (Unix epoch); `NO_TIME` = a position of an older
    version.
    """

    created_ns: int
    revision: int
    sample: bytes = bytes(16)
    resync_serial: int = 0
    time_ns: int = NO_TIME

    @property
    def checked(self) -> bool:
        """True = `sample` is the hash of a message."""
        return self.sample[:8] != _UNCHECKED

    def encode(self) -> bytes:
        """Encode for the store; without a time, in the format that it was decoded from."""
        body = self.created_ns, self.revision, self.sample
        if self.time_ns != NO_TIME:
            return _LAYOUT.pack(_TIME_FORMAT, *body) + _TIME.pack(self.resync_serial, self.time_ns)
        if not self.resync_serial:
            return _LAYOUT.pack(_FORMAT, *body)
        return _LAYOUT.pack(_SERIAL_FORMAT, *body) + _SERIAL.pack(self.resync_serial)

    def advanced_to(self, revision: int, server_ns: int) -> StreamPosition:
        """The position at `revision`, if no message behind this one is left: NATS's time was `server_ns` when its stream had
        got so far."""
        return replace(self, revision=revision, sample=bytes(16), time_ns=max(self.time_ns, server_ns))

    def after_changes(self) -> StreamPosition:
        """The same revision after synthetic changes; its sample is not compared."""
        serial = 0 if self.checked else int.from_bytes(self.sample[8:], "little")
        following = (serial + 1) % (1 << 64)
        return replace(self, sample=_UNCHECKED + following.to_bytes(8, "little"))


def decode_position(stored: bytes) -> StreamPosition | None:
    """Decode the stored position; None = none yet.

    Raises:
        InvalidArgument: unknown bytes; another program or a newer version wrote the source.
    """
    if not stored:
        return None
    format_number = stored[0]
    if len(stored) != _SIZES.get(format_number):
        raise InvalidArgument(f"a position of {len(stored)} bytes that this version cannot read", field="position")
    _, created_ns, revision, sample = _LAYOUT.unpack_from(stored)
    serial, time_ns = 0, NO_TIME
    if format_number == _SERIAL_FORMAT:
        (serial,) = _SERIAL.unpack_from(stored, _LAYOUT.size)
    elif format_number == _TIME_FORMAT:
        serial, time_ns = _TIME.unpack_from(stored, _LAYOUT.size)
    return StreamPosition(created_ns, revision, sample, serial, time_ns)


def sample_of(subject: bytes, data: bytes) -> bytes:
    """Hash of a message's subject and data."""
    return xxh3_128_digest(subject + b"\0" + data)


def revision_of(position: StreamPosition | None) -> int:
    """Its revision; 0 = no position."""
    return position.revision if position is not None else 0


def time_of(position: StreamPosition | None) -> int:
    """Its time; `NO_TIME` = unknown."""
    return position.time_ns if position is not None else NO_TIME
