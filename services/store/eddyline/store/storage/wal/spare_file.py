"""The spare: the next WAL file, zero-filled and fsynced before it is needed, so that a frame's fdatasync writes no metadata.

(Zero-filling took fdatasync's p99 from 1.7 to 0.34 ms; `posix_fallocate` brought nothing.) It writes every byte twice: where
groups are large that costs more than the metadata it saves, so then a spare is a hole of the right length (`fills`).
I1: a file gets its number only when all its bytes are zero and durable. I2: what a crash left as spare is never trusted:
it is filled again.
Failure: where the process is short of descriptors or memory `take` goes on as its caller has patience for (`RetryBudget`).
Threading: `prepare` on a background thread, `take` on the writer thread; one lock, a leaf, is held while a file is filled:
the writer would have to fill one anyway. `prepare` does not wait for it: what the writer takes then is not its own.
"""

from __future__ import annotations

from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from eddyline.core.runtime.fs import write_all
from eddyline.store.storage.layout import wal_file, wal_spare

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eddyline.core.runtime.fs import File, Fs

T = TypeVar("T")

_ZEROS: Final = memoryview(bytes(1 << 20))


class RetryBudget(Protocol):
    """Does a job, again and again where the process is short of something, for as long as its owner likes."""

    def __call__(self, job: Callable[[], T], /) -> T:
        """The job's result. Raises: OSError, the job's."""


def at_once(job: Callable[[], T], /) -> T:
    """No patience."""
    return job()


class Spare:
    """One shard's spare file."""

    def __init__(self, fs: Fs, directory: Path, file_bytes: int) -> None:
        self._fs = fs
        self._directory = directory
        self._file_bytes = file_bytes
        self._lock = Lock()
        self._file: File | None = None
        self.fills = True
        """False = the next spare is a hole. Set by the writer."""

    @property
    def ready(self) -> bool:
        """True = the next `take` of a usual file does not have to fill one."""
        return self._file is not None

    def prepare(self) -> None:
        """Fill one, if there is none.

        Raises:
            OSError: it could not be filled; there is none then, and the next call begins anew.
        """
        if self._lock.acquire(blocking=False):
            try:
                if self._file is None:
                    self._file = self._filled(self._file_bytes)
            finally:
                self._lock.release()

    def take(self, number: int, size: int, patiently: RetryBudget = at_once) -> File:
        """Give it its number, durably; it is at least `size` long, and the caller's to close.

        Raises:
            OSError: there is no file of this number, or it is not known whether there is.
        """
        with self._lock:
            file, self._file = self._file, None
            if file is not None and size > self._file_bytes:
                file.close()
                file = None
            file = file or patiently(partial(self._filled, max(size, self._file_bytes)))
            named = False
            try:
                self._fs.rename(wal_spare(self._directory), wal_file(self._directory, number))
                patiently(partial(self._fs.fsync_dir, self._directory))
                named = True
            finally:
                if not named:
                    file.close()
            return file

    def close(self) -> None:
        """Close it, if there is one."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.close()

    def _filled(self, size: int) -> File:
        file = self._fs.open(wal_spare(self._directory), create=True)
        done = False
        try:
            if not self.fills:
                file.truncate(0)  # what a crash left here is not zero
            for offset in range(0, size if self.fills else 0, len(_ZEROS)):
                write_all(file, [_ZEROS[: size - offset]], offset)
            if file.size() != size:
                file.truncate(size)
            file.fsync()
            done = True
        finally:
            if not done:
                file.close()
        return file
