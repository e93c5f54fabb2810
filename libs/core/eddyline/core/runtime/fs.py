"""The file system: the only door to the disk, of the store and of what clients keep.

Three implementations pass one conformance suite: the real one here; a simulated disk that crashes and a faulty one that
errs, both of the tests. Paths are absolute. Every failure is an `OSError` of the system, passed on as it is: callers
decide what it means, nothing here retries one.

Durability is POSIX's: bytes are safe after `fdatasync` or `fsync`, a shorter length after `fsync` only, a name (made,
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
"""Buffers one call takes: the IOV_MAX of Linux and macOS. More are a short write, which `write_all` goes on from."""
HOLDER_BYTES_MAX: Final = 4096
_BLOCK_BYTES: Final = 512
"""What `st_blocks` counts in, whatever the file system's own blocks are."""
_DURABLE: Final[int] = getattr(os, "RWF_DSYNC", 0)
"""Linux: a write is over when what it wrote is durable. 0 = there is no such flag."""
_UNKNOWN_FLAG: Final = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
"""What kernels and file systems say of a flag that they do not know; nothing was written then."""


SHORTAGES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN))
"""What the system says where it is short of descriptors, memory or threads: of the disk it says nothing, and the same call
may be made again. Of an fsync or fdatasync even these are failures: a second one would lie."""


def is_shortage(error: OSError) -> bool:
    """Whether a call failed for want of a resource, and not by the disk."""
    return error.errno in SHORTAGES


def is_shortage_text(words: str) -> bool:
    """The same of an engine's own error, which has the system's words in it."""
    return any(os.strerror(code) in words for code in SHORTAGES)


class Locked(Exception):
    """Somebody else holds the lock; `holder` is the text he left in it, empty where he had not come to that.

    Operator action: stop the holder, or start with another data directory.
    """

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is held by {holder or 'a process that has not said its name yet'}")
        self.path = path
        self.holder = holder


class File(Protocol):
    """An open file. Whoever opened it closes it."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write buffers one after the other from `offset`; the bytes written, maybe fewer than given."""

    def pwritev_durable(self, buffers: Sequence[Buffer], offset: int) -> int:
        """As `pwritev`, and what is written is durable, as if by `fdatasync`: it, and nothing written before."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""

    def size(self) -> int:
        """Its length in bytes."""

    def truncate(self, size: int) -> None:
        """Make it `size` bytes long."""

    def fdatasync(self) -> None:
        """Make its bytes durable, and a larger length with them."""

    def fsync(self) -> None:
        """Make its bytes and its length durable."""

    def close(self) -> None:
        """Let go of it. Nothing becomes durable by that."""


class Lock(Protocol):
    """A held lock. It ends with the process, whatever ends that."""

    def release(self) -> None:
        """Let go of it."""


class Fs(Protocol):
    """Files and directories by path."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; `create` makes an empty file where there is none."""

    def listdir(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""

    def mkdir(self, path: Path) -> None:
        """Make one directory, for its owner only; none is made where it exists."""

    def exists(self, path: Path) -> bool:
        """True = a file or directory of this name exists."""

    def rename(self, old: Path, new: Path) -> None:
        """Move a file, or a directory with all in it, in one step; a file or an empty directory at `new` is gone.

        Between two directories each half needs its `fsync_dir`, that of the new one first: the other way round a power
        loss may leave the name in neither.
        """

    def unlink(self, path: Path) -> None:
        """Remove a file's name."""

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""

    def free_bytes(self, path: Path) -> int:
        """What may still be written to the file system that the directory `path` is on."""

    def disk_bytes(self, path: Path) -> int:
        """What a file takes of its disk: more than its frames where it is filled ahead, less than its length where it has
        holes."""

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a directory durable. A shortage (`is_shortage`) is of opening it: of its fsync it is EIO."""

    def lock(self, path: Path, holder: bytes) -> Lock:
        """Take the lock file, leaving `holder` in it as text.

        Raises:
            Locked: somebody else has it.
        """


def write_all(file: File, buffers: Sequence[Buffer], offset: int, *, durable: bool = False) -> None:
    """Write every byte of `buffers` from `offset`, however many calls it takes; `durable` by `pwritev_durable`.

    Raises:
        OSError: of the file, or EIO where a call wrote nothing.
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
    """Remove a directory that holds nothing but files, durably; none is no error, so a cut removal is simply tried again.

    Raises:
        OSError: of the file system; it holds a directory, too.
    """
    if fs.exists(path):
        for name in fs.listdir(path):
            fs.unlink(path / name)
        fs.rmdir(path)
    fs.fsync_dir(path.parent)


def remove_tree(fs: Fs, path: Path) -> None:
    """Remove a file, or a directory with all in it, whatever its shape; none is no error. A link goes, what it names stays.

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
    """The operating system's files."""

    def open(self, path: Path, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return RealFile(os.open(path, flags, 0o600))
        except OSError as error:
            if create or error.errno != errno.EROFS:
                raise
            # What the kernel has made read-only, after an error of the disk, is still read.
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
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def disk_bytes(self, path: Path) -> int:
        return os.stat(path).st_blocks * _BLOCK_BYTES

    def fsync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if is_shortage(error):  # may not be done again, as the open above may
                raise OSError(errno.EIO, f"fsync: {error.strerror}", str(path)) from error
            raise
        finally:
            os.close(fd)

    def lock(self, path: Path, holder: bytes) -> Lock:
        # Here: it is not on every system that a client runs on.
        import fcntl

        assert len(holder) <= HOLDER_BYTES_MAX
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, holder, 0)
        except BlockingIOError:
            left = os.pread(fd, HOLDER_BYTES_MAX, 0)
            os.close(fd)
            raise Locked(path, left.decode("utf-8", "replace").strip()) from None
        except OSError:
            os.close(fd)
            raise
        return RealLock(fd)


class RealFile:
    """A file descriptor."""

    __slots__ = ("_fd", "_knows_durable")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._knows_durable = True

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(self._fd, buffers[:BUFFERS_MAX], offset)

    def pwritev_durable(self, buffers: Sequence[Buffer], offset: int) -> int:
        """One call, so that the thread waits for the interpreter's lock once and not twice."""
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
    """A flock: the kernel ends it with the process. The file stays, so that no two processes lock two files."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)
