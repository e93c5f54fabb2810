"""A writer's position in its rows, and a digest of these: it is committed with them.

    position = u8 version (1), u8 flags (bit 0: the file ends here), u64 epoch, u64 ordinal, 16 bytes digest  little-endian

`epoch` is the micro-batch of a stream, 0 elsewhere. `ordinal` counts the rows before the position; in a file of lines it
is the byte where the next one begins. `digest` is of all rows up to the ordinal (`RowDigest`), or of what identifies a
file. With it a later attempt knows whether the rows that were written are the ones that it has: what is skipped is what
was stored, never another row at the same place.

I1: a digest depends on the rows alone, not on how they were cut into batches. I2: positions behind different rows differ.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import xxhash

from eddyline.core.errors import InvalidArgument
from eddyline.core.records.column import presence, size_array
from eddyline.core.records.fixed import APPEND_BYTE

if TYPE_CHECKING:
    from eddyline.core.records.batch import Batch
    from eddyline.core.records.column import Column

_VERSION: Final = 1
_FINAL: Final = 1
_LAYOUT: Final = Struct("<BBQQ16s")
_COLUMNS: Final = 6
_KNOW_ABSENCE: Final = 4
"""Key, data, tag and node: the first of `Batch.columns`."""


class RowPosition(NamedTuple):
    """See the module. `is_final`: nothing of the file follows; of a partition nobody knows."""

    epoch: int
    ordinal: int
    digest: bytes
    is_final: bool = False

    def encoded(self) -> bytes:
        """The bytes that the store keeps."""
        return _LAYOUT.pack(_VERSION, _FINAL if self.is_final else 0, self.epoch, self.ordinal, self.digest)


def decoded(position: bytes, *, writer: str) -> RowPosition:
    """A stored position.

    Raises:
        InvalidArgument: it is none of ours: something else writes under this writer's name.
    """
    if len(position) == _LAYOUT.size:
        version, flags, epoch, ordinal, digest = _LAYOUT.unpack(position)
        if version == _VERSION and flags in (0, _FINAL):
            return RowPosition(epoch, ordinal, digest, flags == _FINAL)
    raise InvalidArgument(
        f"the position of writer {writer} was not written by Spark: set another writeId",
        field="writer",
        writer=writer,
        position=position.hex(),
    )


class RowDigest:
    """A digest of rows that grows with them."""

    def __init__(self) -> None:
        self._fixed = [xxhash.xxh3_128(), xxhash.xxh3_128()]
        self._sizes = [xxhash.xxh3_128() for _ in range(_COLUMNS)]
        self._values = [xxhash.xxh3_128() for _ in range(_COLUMNS)]

    def add(self, batch: Batch) -> None:
        """The rows go on with these."""
        ops, times = self._fixed
        ops.update(APPEND_BYTE * batch.count if batch.ops is None else batch.ops)
        times.update(bytes(8 * batch.count) if batch.source_ts_ns is None else batch.source_ts_ns)
        for index, column in enumerate(batch.columns()):
            self._sizes[index].update(_marked_sizes(column, batch.count, absence=index < _KNOW_ABSENCE))
            if column is not None:
                self._values[index].update(column.values)

    def digest(self) -> bytes:
        """That of all rows so far."""
        parts = [part.digest() for part in (*self._fixed, *self._sizes, *self._values)]
        return xxhash.xxh3_128_digest(b"".join(parts))

    def copy(self) -> RowDigest:
        """One that grows on its own."""
        made = RowDigest.__new__(RowDigest)
        made._fixed, made._sizes, made._values = (
            [part.copy() for part in parts] for parts in (self._fixed, self._sizes, self._values)
        )
        return made


def _marked_sizes(column: Column | None, count: int, *, absence: bool) -> bytes:
    """Length of each cell; where cells may be absent one more, and 0 for those that are."""
    if column is None:
        return bytes(4 * count)
    sizes = size_array(column).astype("<u4")
    if absence:
        sizes += np.uint32(1)
        if column.validity is not None:
            sizes[~presence(column, count)] = 0
    return sizes.tobytes()
