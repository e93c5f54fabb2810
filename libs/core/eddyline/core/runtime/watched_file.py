"""Small files that are polled, and read again when they changed: keys, a role's own secret, certificates.

A poll compares time, size and inode number, through links, so a volume that Kubernetes swaps counts as changed. The
caller checks the content; while a file is gone or malformed the caller keeps the content it accepted last, and logs that
once.
Threading: the owner's; `poll` blocks for a moment, and belongs on a worker thread.
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
    """The file is larger than its reader allows."""


class FileWatcher:
    """One file, first read with `read`."""

    def __init__(self, path: str, *, bytes_max: int) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._signature: _Signature | None = None

    def read(self) -> bytes:
        """Read the file, and remember its signature.

        Raises:
            OSError: it cannot be read, or is too large.
        """
        with Path(self.path).open("rb") as file:
            # Of the open file, and before reading: a write or a replacement meanwhile then counts as a change at the next
            # poll.
            self._signature = _signature(os.fstat(file.fileno()))
            content = file.read(self._bytes_max + 1)
        if len(content) > self._bytes_max:
            raise FileTooLarge(f"it has more than {self._bytes_max} bytes")
        return content

    def poll(self) -> bytes | None:
        """Return the content if the file changed since the last poll; None = unchanged.

        Raises:
            OSError: it cannot be read; the next poll tries again.
        """
        if self._signature is not None and _signature(Path(self.path).stat()) == self._signature:
            return None
        self._signature = None
        return self.read()


class FileSetWatcher:
    """Files that belong together: due from the change of one until `mark_read`."""

    def __init__(self, *paths: str, bytes_max: int) -> None:
        """Watch the files; empty paths are left out."""
        self._files = [FileWatcher(path, bytes_max=bytes_max) for path in dict.fromkeys(paths) if path]
        self._is_due = True

    def __bool__(self) -> bool:
        return bool(self._files)

    def poll(self) -> bool:
        """Return True if the files must be read. A file that cannot be polled counts as changed: its reader gets the
        error."""
        for file in self._files:
            try:
                self._is_due |= file.poll() is not None
            except OSError:
                self._is_due = True
        return self._is_due

    def mark_read(self) -> None:
        """Mark the files as read and accepted."""
        self._is_due = False


def _signature(stat: os.stat_result) -> _Signature:
    return _Signature(stat.st_mtime_ns, stat.st_size, stat.st_ino)
