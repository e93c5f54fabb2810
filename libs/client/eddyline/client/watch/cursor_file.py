"""The store of a watch's cursors between runs: the protocol, and a file that implements it.

    file   = digest "\\n" cursors "\\n"
    cursors = JSON: {"format": 1, "cursors": {topic: {"epoch": number, "seq": number}, …}}
    digest  = xxh3_64 of `cursors`, 16 hex digits

Each `save` writes a new file (`….new`), syncs it, renames it over the old one, and the name is synced: after
any crash it is the old one or the new one, whole. One process at a time uses one file. Blocking; any one thread at a
time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, Protocol

from xxhash import xxh3_64_hexdigest

from eddyline.client.watch.events import Position
from eddyline.core.errors import DataCorrupt, NewerFormat
from eddyline.core.runtime.fs import RealFs, write_all

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from eddyline.core.runtime.fs import Fs

FORMAT: Final = 1
FILE_BYTES_MAX: Final = 1 << 20
"""A thousand topics with names of 255 bytes take 0.4 MB."""


class CursorStore(Protocol):
    """A store of cursors. Blocking: called on a thread that is not the loop's, always the same one."""

    def load(self) -> Mapping[str, Position]:
        """Per topic the place to go on at; empty = none was saved yet."""

    def save(self, cursors: Mapping[str, Position]) -> None:
        """Keep these and no others, durably when it returns."""


class CursorFile:
    """Cursors in a file of their own."""

    def __init__(self, path: Path, *, fs: Fs | None = None) -> None:
        self._path = path
        self._fs = fs if fs is not None else RealFs()

    def load(self) -> dict[str, Position]:
        """Return the cursors saved last.

        Raises:
            DataCorrupt: the file is not as it was written; it is never taken for an empty one. NewerFormat: a later
                version's. OSError: of the file system.
        """
        try:
            file = self._fs.open(self._path)
        except FileNotFoundError:
            return {}
        try:
            digest, _, rest = file.pread(FILE_BYTES_MAX, 0).partition(b"\n")
        finally:
            file.close()
        body = rest[:-1]
        if not rest.endswith(b"\n") or xxh3_64_hexdigest(body).encode() != digest:
            raise DataCorrupt(f"{self._path}: the cursors' checksum is wrong", file=str(self._path), offset=0)
        content = json.loads(body)
        if content["format"] > FORMAT:
            raise NewerFormat(
                f"{self._path} has format {content['format']}; this version reads {FORMAT}",
                file=str(self._path),
                offset=0,
            )
        return {topic: Position(place["epoch"], place["seq"]) for topic, place in content["cursors"].items()}

    def save(self, cursors: Mapping[str, Position]) -> None:
        """Keep these and no others.

        Raises:
            OSError: of the file system; what was saved before is there still.
        """
        places = {topic: {"epoch": place.epoch, "seq": place.seq} for topic, place in sorted(cursors.items())}
        body = json.dumps({"format": FORMAT, "cursors": places}, separators=(",", ":")).encode()
        new = self._path.with_name(self._path.name + ".new")
        file = self._fs.open(new, create=True)
        try:
            file.truncate(0)
            write_all(file, [xxh3_64_hexdigest(body).encode(), b"\n", body, b"\n"], 0)
            file.fsync()
        finally:
            file.close()
        self._fs.rename(new, self._path)
        self._fs.fsync_dir(self._path.parent)
