"""The bytes of a fold entry, under the name that the store knows them by; they are those of `eddyline.core.fold_entry`."""

from __future__ import annotations

from eddyline.core.fold_entry import (
    FORMAT,
    HAS_DATA,
    HAS_NODE,
    HAS_TAG,
    HEAD,
    HEAD_BYTES,
    PLACE,
    PLAIN_SHAPE,
    SHAPE,
    decode_entry,
    encode_entry,
)

__all__ = [
    "FORMAT",
    "HAS_DATA",
    "HAS_NODE",
    "HAS_TAG",
    "HEAD",
    "HEAD_BYTES",
    "PLACE",
    "PLAIN_SHAPE",
    "SHAPE",
    "decode_entry",
    "encode_entry",
]
