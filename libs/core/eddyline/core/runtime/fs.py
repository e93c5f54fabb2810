"""File system: the only access to the disk, for the store and for files that clients keep.

Three implementations pass one conformance suite: the real one here; a simulated disk that crashes and a faulty one that
returns errors, both in the tests. Paths are absolute. Every failure is an `OSError` of the system, passed on unchanged:
callers decide what it means, and nothing here retries.

Durability is POSIX's: bytes are durable after `fdatasync` or `fsync`, a shorter length after `fsync` only, a name (created,
renamed, removed) after `fsync_dir` of its directory.
Threading: `Fs` from any thread; a `File` has one owner, but `pread` may run on any thread while it is open.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Buffer: TypeAlias = bytes | bytearray | memoryview

BUFFERS_MAX: Final = 1024
"""Buffers in one call: the IOV_MAX of Linux and macOS. More make a short write, which `write_all` continues."""
HOLDER_BYTES_MAX: Final = 4096
_BLOCK_BYTES: Final = 512
"""Unit of `st_blocks`, independent of the file system's block size."""
_DURABLE: Final[int] = getattr(os, "RWF_DSYNC", 0)
"""Linux: a write returns once its bytes are durable. 0 = there is no such flag."""
_UNKNOWN_FLAG: Final = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
"""Errors of kernels and file systems for an unknown flag; nothing was written then."""


SHORTAGES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN))
"""Errors for a lack of descriptors, memory or threads. They say nothing about the disk, and the call may be repeated. From
fsync or fdatasync they are failures all the same: a second call would report success for lost bytes."""


def is_shortage(error: OSError) -> bool:
    """Return True if a call failed for a lack of resources rather than by the disk."""
    return error.errno in SHORTAGES


def is_shortage_text(message: str) -> bool:
    """Return True if an engine's message has the system's text of such an error."""
    return any(os.strerror(code) in message for code in SHORTAGES)


class Locked(Exception):
    """Another process holds the lock; `holder` is the text it left there, empty if it has not written it yet.

    Operator action: stop the holder, or start with another data directory.
    """

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is held by {holder or 'a process that has not written its name yet'}")
        self.path = path
        self.holder = holder


class File(Protocol):
    """An open file. Its opener closes it."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write buffers one after the other from `offset`; return the bytes written, maybe fewer than all."""

    def pwritev_durable(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Like `pwritev`, and the bytes it wrote are durable, as by `fdatasync`; earlier writes are not."""

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""

    def size(self) -> int:
        """Return the length in bytes."""

    def truncate(self, size: int) -> None:
        """Set the length to `size` bytes."""

    def fdatasync(self) -> None:
        """Make its bytes durable, and with them a larger length."""

    def fsync(self) -> None:
        """Make its bytes and its length durable."""

    def close(self) -> None:
        """Close it. That makes nothing durable."""


class Lock(Protocol):
    """A held lock. It ends with the process, in whichever way that ends."""

    def release(self) -> None:
        """Release the lock."""


class Fs(Protocol):
    """Files and directories by path."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; `create` makes an empty file if there is none."""

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""

    def mkdir(self, path: Path) -> None:
        """Make one directory, for its owner only, unless it exists."""

    def exists(self, path: Path) -> bool:
        """Return True if a file or directory of this name exists."""

    def rename(self, old: Path, new: Path) -> None:
        """Move a file, or a directory with its content, atomically; a file or an empty directory at `new` is replaced.

        A move between two directories needs `fsync_dir` of both, the new one first: in the other order a power loss may
        leave the name in neither.
        """

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""

    def free_bytes(self, path: Path) -> int:
        """Return the free bytes of the file system of the directory `path`."""

    def disk_bytes(self, path: Path) -> int:
        """Return the disk space of a file: more than its frames if it is filled ahead, less than its length if it is
        sparse."""

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a directory durable. A shortage (`is_shortage`) can only come from opening it; from fsync it
        is EIO."""

    def lock(self, path: Path, holder: bytes) -> Lock:
        """Lock the file `path`, and write `holder` into it as text.

        Raises:
            Locked: another process holds the lock.
        """


def write_all(file: File, buffers: Sequence[Buffer], offset: int, *, durable: bool = False) -> None:
    """Write all bytes of `buffers` from `offset`, in as many calls as needed; `durable` = by `pwritev_durable`.

    Raises:
        OSError: of the file, or EIO if a call wrote nothing.
    """
    pending = [memoryview(buffer) for buffer in buffers if len(buffer)]
    write = file.pwritev_durable if durable else file.pwritev
    while pending:
        written = write(pending, offset)
        if written <= 0:
            raise OSError(errno.EIO, "a write made no progress")
        offset += written
        done = 0
        while done < len(pending) and written >= len(pending[done]):
            written -= len(pending[done])
            done += 1
        del pending[:done]
        if written:
            pending[0] = pending[0][written:]


def remove_directory(fs: Fs, path: Path) -> None:
    """Remove a directory that has only files, durably. A missing one is no error, so a removal can be repeated after a
    crash.

    Raises:
        OSError: of the file system, also if the directory has another one in it.
    """
    if fs.exists(path):
        for name in fs.listdir(path):
            fs.unlink(path / name)
        fs.rmdir(path)
    fs.fsync_dir(path.parent)


def remove_tree(fs: Fs, path: Path) -> None:
    """Remove a file or a whole tree; a missing one is no error. Of a link only the link is removed, not its target.

    Raises:
        OSError: of the file system.
    """
    try:
        names = [] if path.is_symlink() else fs.listdir(path)
        is_directory = not path.is_symlink()
    except FileNotFoundError:
        return
    except NotADirectoryError:
        names, is_directory = [], False
    for name in names:
        remove_tree(fs, path / name)
    if is_directory:
        fs.rmdir(path)
    else:
        fs.unlink(path)


class RealFs:
    """Files of the operating system."""

    def open(self, path: Path, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return RealFile(os.open(path, flags, 0o600))
        except OSError as error:
            if create or error.errno != errno.EROFS:
                raise
            # A file system that the kernel made read-only, after a disk error, can still be read.
            return RealFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def listdir(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def mkdir(self, path: Path) -> None:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def exists(self, path: Path) -> bool:
        return os.path.exists(path)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)

    def free_bytes(self, path: Path) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def disk_bytes(self, path: Path) -> int:
        return os.stat(path).st_blocks * _BLOCK_BYTES

    def fsync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if is_shortage(error):  # unlike the open above, it must not be repeated
                raise OSError(errno.EIO, f"fsync: {error.strerror}", str(path)) from error
            raise
        finally:
            os.close(fd)

    def lock(self, path: Path, holder: bytes) -> Lock:
        # Imported here: some systems that clients run on do not have it.
        import fcntl

        assert len(holder) <= HOLDER_BYTES_MAX
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, holder, 0)
        except BlockingIOError:
            text = os.pread(fd, HOLDER_BYTES_MAX, 0)
            os.close(fd)
            raise Locked(path, text.decode("utf-8", "replace").strip()) from None
        except OSError:
            os.close(fd)
            raise
        return RealLock(fd)


class RealFile:
    """An open file descriptor."""

    __slots__ = ("_fd", "_knows_durable")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._knows_durable = True

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(self._fd, buffers[:BUFFERS_MAX], offset)

    def pwritev_durable(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write in one call, so that the thread waits for the interpreter's lock once rather than twice."""
        if _DURABLE and self._knows_durable:
            try:
                return os.pwritev(self._fd, buffers[:BUFFERS_MAX], offset, _DURABLE)
            except OSError as error:
                if error.errno not in _UNKNOWN_FLAG:
                    raise
                self._knows_durable = False
        written = self.pwritev(buffers, offset)
        self.fdatasync()
        return written

    def pread(self, size: int, offset: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def fsync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class RealLock:
    """A flock: the kernel ends it with the process. The file stays, so that two processes never lock two different files."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)
