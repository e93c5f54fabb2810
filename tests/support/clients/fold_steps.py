"""Steps on a local fold's file, and its possible contents after each: for sweeps and random lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eddyline.client.local_fold.file import open_file, write_base
from eddyline.client.local_fold.frame import Change, FoldPosition, FoldScope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.client.local_fold.file import FoldFile
    from eddyline.core.runtime.fs import Fs

PATH: Final = Path("/edge/t.fold")
SCOPE: Final = FoldScope("t", (b"k",))
EPOCH: Final = 7


@dataclass(frozen=True, slots=True)
class Held:
    """A fold at one place."""

    entries: tuple[tuple[bytes, bytes], ...]
    place: FoldPosition


@dataclass(slots=True)
class FileLife:
    """One file and its history: `held` is what it has been, oldest first; `durable` indexes the newest that was
    synced."""

    fs: Fs
    entries: dict[bytes, bytes] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    durable: int = -1
    file: FoldFile | None = None

    def base(self, entries: dict[bytes, bytes], place: FoldPosition) -> None:
        """A snapshot: the file is made anew. It is one of the states from the moment it is begun."""
        self.held.append(held(entries, place))
        made = write_base(self.fs, PATH, SCOPE, place, entries=entries.items(), snapshot_ms=5)
        self._replaced(made)
        self.entries = dict(entries)

    def compact(self) -> None:
        """The file is made anew of what is live."""
        assert self.file is not None
        place = self.file.place
        self._replaced(write_base(self.fs, PATH, SCOPE, place, entries=self.entries.items(), snapshot_ms=5))

    def append(self, changes: Sequence[Change], place: FoldPosition) -> None:
        """Changes, or a topic's deletion."""
        assert self.file is not None
        after = {} if place.deleted else dict(self.entries)
        for key, entry in changes:
            if entry is None:
                after.pop(key, None)
            else:
                after[key] = entry
        self.held.append(held(after, place))
        self.file.append(changes, place)
        self.entries = after

    def sync(self) -> None:
        """All of it is on the disk."""
        assert self.file is not None
        self.file.sync()
        self.durable = len(self.held) - 1

    def close(self) -> None:
        """A clean end."""
        assert self.file is not None
        self.file.close()
        self.file = None
        self.durable = len(self.held) - 1

    def _replaced(self, file: FoldFile) -> None:
        if self.file is not None:
            self.file.close(clean=False)
        self.file = file
        self.durable = len(self.held) - 1


def held(entries: dict[bytes, bytes], place: FoldPosition) -> Held:
    """A fold, to be compared."""
    return Held(tuple(sorted(entries.items())), place)


def look(fs: Fs, *, for_writing: bool = True) -> Held:
    """Return a file's content, as a process that opens it reads it."""
    entries: dict[bytes, bytes] = {}
    file = open_file(fs, PATH, entries, for_writing=for_writing)
    file.close(clean=False)
    return held(entries, file.place)


def put(key: str, value: str) -> tuple[bytes, bytes]:
    """A key and its entry; the file does not look into entries."""
    return key.encode(), value.encode()


def live(life: FileLife) -> None:
    """A life with one of everything."""
    life.base(dict([put("ka", "1"), put("kb", "2")]), FoldPosition(EPOCH, 2, 10))
    life.append([put("ka", "3"), put("kc", "4" * 40)], FoldPosition(EPOCH, 4, 10))
    life.append([(b"kb", None), (b"never", None)], FoldPosition(EPOCH, 6, 11))
    life.sync()
    life.append([put("kd", "")], FoldPosition(EPOCH, 7, 11))
    life.append([], FoldPosition(EPOCH, 7, 12))
    life.compact()
    life.append([put("ke", "5")], FoldPosition(EPOCH, 8, 12))
    life.append([], FoldPosition(EPOCH, 8, 12, deleted=True))
    life.base(dict([put("ka", "new")]), FoldPosition(EPOCH + 1, 1, 13))
    life.append([put("kb", "new")], FoldPosition(EPOCH + 1, 2, 13))
    life.sync()
    life.append([put("kc", "new")], FoldPosition(EPOCH + 1, 3, 13))
    life.close()
