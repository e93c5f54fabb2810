"""File system that changes nothing: reads pass through, all other calls fail with EROFS.

A temporary file that a start would rename is readable under its final name (`alias`).
The lock is the store's own, held on the file without writing the holder: a store that is started meanwhile reports that
the directory is in use, without a name.
Threading: any thread, once the aliases are known.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING, NoReturn

from eddyline.core.runtime.fs import HOLDER_BYTES_MAX, Locked, RealFile, RealFs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from eddyline.core.runtime.fs import Buffer, File, Lock


class ReadOnlyFs:
    """`eddyline.core.runtime.fs.Fs` for readers."""

    def __init__(self) -> None:
        self._aliases: dict[Path, Path] = {}

    def alias(self, path: Path, target: Path) -> None:
        """Read `target` under the name `path`."""
        self._aliases[path] = target

    def open(self, path: Path, *, create: bool = False) -> File:
        return _ReadOnlyFile(os.open(self._aliases.get(path, path), os.O_RDONLY | os.O_CLOEXEC))

    def listdir(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: Path) -> bool:
        return os.path.exists(self._aliases.get(path, path))

    def free_bytes(self, path: Path) -> int:
        stats = os.statvfs(path)
        return stats.f_bavail * stats.f_frsize

    def disk_bytes(self, path: Path) -> int:
        return RealFs().disk_bytes(self._aliases.get(path, path))

    def lock(self, path: Path, holder: bytes) -> Lock:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(fd, HOLDER_BYTES_MAX, 0)
            os.close(fd)
            raise Locked(path, text.decode("utf-8", "replace").strip()) from None
        except OSError:
            os.close(fd)
            raise
        return _ReadOnlyLock(fd)

    def mkdir(self, path: Path) -> None:
        _refuse(path)

    def rename(self, old: Path, new: Path) -> None:
        _refuse(old)

    def unlink(self, path: Path) -> None:
        _refuse(path)

    def rmdir(self, path: Path) -> None:
        _refuse(path)

    def fsync_dir(self, path: Path) -> None:
        _refuse(path)


class _ReadOnlyFile:
    __slots__ = ("_fd", "_file")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._file = RealFile(fd)

    def pread(self, size: int, offset: int) -> bytes:
        return self._file.pread(size, offset)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        _refuse(None)

    def pwritev_durable(self, buffers: Sequence[Buffer], offset: int) -> int:
        _refuse(None)

    def truncate(self, size: int) -> None:
        _refuse(None)

    def fdatasync(self) -> None:
        _refuse(None)

    def fsync(self) -> None:
        _refuse(None)


class _ReadOnlyLock:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.close(self._fd)


def _refuse(path: Path | None) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), None if path is None else str(path))
