"""A disk that errs: a file system around another one, with faults at given calls.

An operation is named as in the `Fs` and `File` protocols; its calls are counted from 1, over all files.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from eddyline.core.runtime.fs import Buffer, File, Fs, Lock


class Fault(NamedTuple):
    """A fault: at call `call` of `operation`, and at all later ones if `lasting`.

    `error` is an errno. Without one a `pwritev` writes only `short` bytes, and says so.
    """

    operation: str
    call: int
    error: int = 0
    short: int = 0
    lasting: bool = False


class FaultyFs:
    """See the module's docstring. `calls` counts by operation; faults may be added at any time."""

    def __init__(self, inner: Fs, faults: Sequence[Fault] = ()) -> None:
        self.inner = inner
        self.faults = list(faults)
        self.calls: Counter[str] = Counter()
        self.free: int | None = None
        """The value of `free_bytes`; None = the inner file system's."""

    def next_fault(self, operation: str, *, error: int = 0, short: int = 0, lasting: bool = False) -> None:
        """Let the next call of `operation` go wrong."""
        self.faults.append(Fault(operation, self.calls[operation] + 1, error, short, lasting))

    def open(self, path: Path, *, create: bool = False) -> File:
        self.call("open")
        return _FaultyFile(self, self.inner.open(path, create=create))

    def listdir(self, path: Path) -> list[str]:
        self.call("listdir")
        return self.inner.listdir(path)

    def mkdir(self, path: Path) -> None:
        self.call("mkdir")
        self.inner.mkdir(path)

    def exists(self, path: Path) -> bool:
        self.call("exists")
        return self.inner.exists(path)

    def rename(self, old: Path, new: Path) -> None:
        self.call("rename")
        self.inner.rename(old, new)

    def unlink(self, path: Path) -> None:
        self.call("unlink")
        self.inner.unlink(path)

    def rmdir(self, path: Path) -> None:
        self.call("rmdir")
        self.inner.rmdir(path)

    def free_bytes(self, path: Path) -> int:
        self.call("free_bytes")
        return self.inner.free_bytes(path) if self.free is None else self.free

    def disk_bytes(self, path: Path) -> int:
        self.call("disk_bytes")
        return self.inner.disk_bytes(path)

    def fsync_dir(self, path: Path) -> None:
        self.call("fsync_dir")
        self.inner.fsync_dir(path)

    def lock(self, path: Path, holder: bytes) -> Lock:
        self.call("lock")
        return self.inner.lock(path, holder)

    def call(self, operation: str) -> Fault | None:
        """Count a call; raise its error, or give its short write."""
        self.calls[operation] += 1
        for fault in self.faults:
            at = self.calls[operation]
            if fault.operation == operation and (fault.call == at or (fault.lasting and fault.call < at)):
                if fault.error:
                    raise OSError(fault.error, os.strerror(fault.error))
                return fault
        return None


class _FaultyFile:
    def __init__(self, fs: FaultyFs, inner: File) -> None:
        self._fs = fs
        self._inner = inner

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        fault = self._fs.call("pwritev")
        if fault is None:
            return self._inner.pwritev(buffers, offset)
        data = b"".join(buffers)[: fault.short]
        return self._inner.pwritev([data], offset) if data else 0

    def pwritev_durable(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Counts and errs as the two calls that it stands for."""
        written = self.pwritev(buffers, offset)
        self.fdatasync()
        return written

    def pread(self, size: int, offset: int) -> bytes:
        self._fs.call("pread")
        return self._inner.pread(size, offset)

    def size(self) -> int:
        self._fs.call("size")
        return self._inner.size()

    def truncate(self, size: int) -> None:
        self._fs.call("truncate")
        self._inner.truncate(size)

    def fdatasync(self) -> None:
        self._fs.call("fdatasync")
        self._inner.fdatasync()

    def fsync(self) -> None:
        self._fs.call("fsync")
        self._inner.fsync()

    def close(self) -> None:
        self._inner.close()
