"""Frames as another version, or a defect, would have written them: changed bytes under a right checksum."""

from __future__ import annotations

import struct

from xxhash import xxh3_64_intdigest


def reseal(frame: bytes, *, at: int, changed: bytes, shard: int, file_number: int, offset: int) -> bytes:
    """The frame with `changed` at byte `at`, and the checksum that belongs to it at this place."""
    body = bytearray(frame[:-8])
    body[at : at + len(changed)] = changed
    seed = xxh3_64_intdigest(struct.pack("<HQQ", shard, file_number, offset))
    return bytes(body) + struct.pack("<Q", xxh3_64_intdigest(bytes(body), seed))
