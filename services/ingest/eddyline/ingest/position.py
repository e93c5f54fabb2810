"""A source's position at NATS: which stream, up to which revision, and a sample of the message there.

    position = u8 1, i64 created_ns, u64 revision, 16 bytes sample        little-endian, 33 bytes; no bytes = none yet
             | u8 2, the same, u64 resync_serial                         where a resync was asked for: 41 bytes

The stream's creation time tells a stream made anew, the sample one that was rolled back: xxh3_128 of subject, a zero
byte and data of the message at the revision. Where no message is there (the revision was lost or removed) the sample is
eight zero bytes and a serial number, and is not compared.

`resync_serial` is that of the last resync that was asked for and is done: it is stored in the frame that ends it, so that a
crash neither forgets nor repeats one.

I1: a position that follows another one differs from it in its bytes, also where the revision stays (synthetic deletes
change the fold and nothing at NATS): the store takes a batch whose new position is the stored one for a retry.
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
_UNCHECKED: Final = bytes(8)
"""A sample that begins so is none: one real hash in 2^64 does, and is then not compared, which harms nothing."""

POSITION_BYTES: Final = _LAYOUT.size


@dataclass(frozen=True, slots=True)
class Position:
    """Everything up to `revision` (inclusive) of the stream made at `created_ns` is applied."""

    created_ns: int
    revision: int
    sample: bytes = bytes(16)
    resync_serial: int = 0

    @property
    def checked(self) -> bool:
        """True = `sample` is the hash of a message."""
        return self.sample[:8] != _UNCHECKED

    def encode(self) -> bytes:
        """The bytes that the store keeps."""
        if not self.resync_serial:
            return _LAYOUT.pack(_FORMAT, self.created_ns, self.revision, self.sample)
        body = _LAYOUT.pack(_SERIAL_FORMAT, self.created_ns, self.revision, self.sample)
        return body + _SERIAL.pack(self.resync_serial)

    def after_changes(self) -> Position:
        """The same revision after changes that no message brought; its sample is not compared."""
        serial = 0 if self.checked else int.from_bytes(self.sample[8:], "little")
        following = (serial + 1) % (1 << 64)
        return replace(self, sample=_UNCHECKED + following.to_bytes(8, "little"))


def decode_position(stored: bytes) -> Position | None:
    """The position that the store keeps; None = none yet.

    Raises:
        InvalidArgument: not bytes of ours; the source was written by another program or a newer version.
    """
    if not stored:
        return None
    sizes = {_FORMAT: _LAYOUT.size, _SERIAL_FORMAT: _LAYOUT.size + _SERIAL.size}
    if len(stored) != sizes.get(stored[0]):
        raise InvalidArgument(f"a position of {len(stored)} bytes that this version cannot read", field="position")
    _, created_ns, revision, sample = _LAYOUT.unpack_from(stored)
    serial = _SERIAL.unpack_from(stored, _LAYOUT.size)[0] if stored[0] == _SERIAL_FORMAT else 0
    return Position(created_ns, revision, sample, serial)


def sample_of(subject: bytes, data: bytes) -> bytes:
    """The sample of a message."""
    return xxh3_128_digest(subject + b"\0" + data)


def revision_of(position: Position | None) -> int:
    """Its revision; 0 = nothing yet."""
    return position.revision if position is not None else 0
