"""A source's position at NATS: which stream, up to which revision, and a sample of the message there.

    position = u8 1, i64 created_ns, u64 revision, 16 bytes sample        little-endian, 33 bytes; no bytes = none yet

The stream's creation time tells a stream made anew, the sample one that was rolled back: xxh3_128 of subject, a zero
byte and data of the message at the revision. Where no message is there (the revision was lost or removed) the sample is
eight zero bytes and a serial number, and is not compared.

I1: a position that follows another one differs from it in its bytes, also where the revision stays (synthetic deletes
change the fold and nothing at NATS): the store takes a batch whose new position is the stored one for a retry.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from xxhash import xxh3_128_digest

from eddyline.core.errors import InvalidArgument

_LAYOUT: Final = Struct("<BqQ16s")
_FORMAT: Final = 1
_UNCHECKED: Final = bytes(8)
"""A sample that begins so is none: one real hash in 2^64 does, and is then not compared, which harms nothing."""

POSITION_BYTES: Final = _LAYOUT.size


@dataclass(frozen=True, slots=True)
class Position:
    """Everything up to `revision` (inclusive) of the stream made at `created_ns` is applied."""

    created_ns: int
    revision: int
    sample: bytes = bytes(16)

    @property
    def checked(self) -> bool:
        """True = `sample` is the hash of a message."""
        return self.sample[:8] != _UNCHECKED

    def encode(self) -> bytes:
        """The bytes that the store keeps."""
        return _LAYOUT.pack(_FORMAT, self.created_ns, self.revision, self.sample)

    def after_changes(self) -> Position:
        """The same revision after changes that no message brought; its sample is not compared."""
        serial = 0 if self.checked else int.from_bytes(self.sample[8:], "little")
        following = (serial + 1) % (1 << 64)
        return Position(self.created_ns, self.revision, _UNCHECKED + following.to_bytes(8, "little"))


def decode_position(stored: bytes) -> Position | None:
    """The position that the store keeps; None = none yet.

    Raises:
        InvalidArgument: not bytes of ours; the source was written by another program or a newer version.
    """
    if not stored:
        return None
    if len(stored) != _LAYOUT.size or stored[0] != _FORMAT:
        raise InvalidArgument(f"a position of {len(stored)} bytes that this version cannot read", field="position")
    _, created_ns, revision, sample = _LAYOUT.unpack(stored)
    return Position(created_ns, revision, sample)


def sample_of(subject: bytes, data: bytes) -> bytes:
    """The sample of a message."""
    return xxh3_128_digest(subject + b"\0" + data)


def revision_of(position: Position | None) -> int:
    """Its revision; 0 = nothing yet."""
    return position.revision if position is not None else 0
