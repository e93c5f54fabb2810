"""Small files that are looked at again and again, and read when they are others: keys, a role's own secret, certificates.

A look compares what the file system says of it (time, size, number), through links, so a volume that Kubernetes swaps is
seen too. What is read is judged by whoever takes it; where it is not taken, or the file is gone, what was taken last
holds, and that is said once.
Threading: the owner's; `look` blocks for a moment, and is called on a thread.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class _Signature(NamedTuple):
    modified_ns: int
    size_bytes: int
    number: int


class FileTooLarge(OSError):
    """The file is larger than anything that belongs here."""


class FileWatcher:
    """One file. Made by whoever reads it first with `read`."""

    def __init__(self, path: str, *, bytes_max: int) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._seen: _Signature | None = None

    def read(self) -> bytes:
        """Read it, and remember which one it was.

        Raises:
            OSError.
        """
        with Path(self.path).open("rb") as file:
            # Of what was opened, and before it is read: what is written or put in its place meanwhile is another one at
            # the next look.
            self._seen = _signature(os.fstat(file.fileno()))
            found = file.read(self._bytes_max + 1)
        if len(found) > self._bytes_max:
            raise FileTooLarge(f"it has more than {self._bytes_max} bytes")
        return found

    def poll(self) -> bytes | None:
        """Its content, if it is another one than at the last look; None = it is the same.

        Raises:
            OSError: it cannot be read; the next look tries again.
        """
        if self._seen is not None and _signature(Path(self.path).stat()) == self._seen:
            return None
        self._seen = None
        return self.read()


class FileSetWatcher:
    """Several that are judged together: due from when one is another until whoever reads them says that they were taken."""

    def __init__(self, *paths: str, bytes_max: int) -> None:
        """An empty path = there is none."""
        self._files = [FileWatcher(path, bytes_max=bytes_max) for path in dict.fromkeys(paths) if path]
        self._is_due = True

    def __bool__(self) -> bool:
        return bool(self._files)

    def poll(self) -> bool:
        """True = they are to be read. One that cannot be looked at is told by who reads it."""
        for file in self._files:
            try:
                self._is_due |= file.poll() is not None
            except OSError:
                self._is_due = True
        return self._is_due

    def mark_read(self) -> None:
        """What they held at the last look, or since, was taken."""
        self._is_due = False


def _signature(found: os.stat_result) -> _Signature:
    return _Signature(found.st_mtime_ns, found.st_size, found.st_ino)
