"""A directory that jobs write into, on a disk or in an object store, by its path or URI (`pyarrow.fs`).

I1: a name holds a whole file or none: bytes go to a temporary name beside it and are renamed (an object store copies and
deletes at once). On a disk they are synced before, and the directory after.
I2: `create` succeeds for one of any number of callers at a time on a disk (a hard link). Object stores have no such call
through pyarrow: there it is a look and a write, and two callers within the same moment may both succeed.
A temporary name begins with `_`, and does not end in `.parquet`: neither Spark nor duckdb reads it.
Threading: none of its own; safe between processes as far as I2 goes.
"""

from __future__ import annotations

import os
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyarrow import fs

from eddyline.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

_FLAT: Final = ("s3", "gcs", "abfs")
"""Names of file systems whose directories are made by the files in them."""


def absolute(out: str) -> str:
    """A path or URI that means the same to every process of a job."""
    return out.rstrip("/") if "://" in out else str(Path(out).absolute())


class OutDir:
    """`out` is an absolute path or a URI; names are relative to it, with `/`."""

    def __init__(self, out: str) -> None:
        self.out = out
        self._fs: fs.FileSystem = fs.LocalFileSystem()
        self._root = out
        try:
            if "://" in out:
                self._fs, self._root = fs.FileSystem.from_uri(out)
        except (ValueError, OSError) as error:
            raise InvalidArgument(f"{out} is not a writable directory: {error}", field="out") from error
        self._is_local = isinstance(self._fs, fs.LocalFileSystem)

    def path(self, name: str) -> str:
        """The path in the form of `pyarrow.fs`."""
        return f"{self._root}/{name}" if name else self._root

    def read(self, name: str) -> bytes:
        """The bytes of a file. Raises: FileNotFoundError."""
        with self._fs.open_input_stream(self.path(name)) as stream:
            return bytes(stream.read())

    def write(self, name: str, content: bytes) -> None:
        """Put a file in the place of what may be there (I1)."""
        with self.writing(name) as file:
            file.write(content)

    def create(self, name: str, content: bytes) -> bool:
        """Put a file where none is (I2); False = there is one, and it stays as it is."""
        if not self._is_local:
            if self.exists(name):
                return False
            self.write(name, content)
            return True
        temporary = self._temporary(name)
        try:
            with self._fs.open_output_stream(self.path(temporary)) as stream:
                stream.write(content)
            _sync(self.path(temporary))
            os.link(self.path(temporary), self.path(name))
        except FileExistsError:
            return False
        finally:
            self.remove(temporary)
        _sync(os.path.dirname(self.path(name)))
        return True

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """A file to write to, which takes its name when the block ends, and leaves nothing where it raises."""
        temporary = self._temporary(name)
        try:
            with self._fs.open_output_stream(self.path(temporary)) as stream:
                yield stream
            if self._is_local:
                _sync(self.path(temporary))
            self._fs.move(self.path(temporary), self.path(name))
        except BaseException:
            self.remove(temporary)
            raise
        if self._is_local:
            _sync(os.path.dirname(self.path(name)))

    def exists(self, name: str) -> bool:
        """True = there is a file, or on a disk a directory, of this name."""
        return bool(self._fs.get_file_info(self.path(name)).type != fs.FileType.NotFound)

    def has_entries(self, directory: str) -> bool:
        """True = there is a directory of this name that is not empty."""
        selector = fs.FileSelector(self.path(directory), allow_not_found=True, recursive=False)
        return bool(self._fs.get_file_info(selector))

    def sizes(self, names: list[str]) -> list[int | None]:
        """The size of each file; None = there is none."""
        found = self._fs.get_file_info([self.path(name) for name in names])
        return [info.size if info.type == fs.FileType.File else None for info in found]

    def files(self, directory: str) -> list[str]:
        """Names of the files below a directory, in order; none where it is missing."""
        selector = fs.FileSelector(self.path(directory), allow_not_found=True, recursive=True)
        start = len(self.path("")) + 1
        return sorted(info.path[start:] for info in self._fs.get_file_info(selector) if info.type == fs.FileType.File)

    def modified_s(self, name: str) -> float:
        """When a file was written last, in seconds since 1970, by the clock of who keeps it; 0 = it is not there."""
        return float(self._fs.get_file_info(self.path(name)).mtime_ns or 0) / 1e9

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is fine."""
        with suppress(FileNotFoundError):
            self._fs.delete_file(self.path(name))

    def publish(self, staging: str, name: str, *, last: str) -> None:
        """Give a directory of files its name, at once on a disk; in an object store file by file, `last` of them last.

        Raises:
            FileExistsError: on a disk, somebody else was first.
        """
        if self._fs.type_name not in _FLAT:
            directory = name.rpartition("/")[0]
            self._fs.create_dir(self.path(directory), recursive=True)
            if self._is_local:
                try:
                    os.rename(self.path(staging), self.path(name))
                except OSError as error:
                    raise FileExistsError(f"{self.path(name)} exists already") from error
                _sync(self.path(directory))
            else:
                self._fs.move(self.path(staging), self.path(name))
            return
        for file in sorted(self.files(staging), key=lambda file: (file.endswith(f"/{last}"), file)):
            self._fs.move(self.path(file), self.path(name + file.removeprefix(staging)))

    def remove_all(self, directory: str) -> None:
        """Remove a directory with all in it; one that is not there is fine."""
        if self.exists(directory):
            self._fs.delete_dir(self.path(directory))

    def _temporary(self, name: str) -> str:
        directory, _, last = name.rpartition("/")
        if self._fs.type_name not in _FLAT:
            self._fs.create_dir(self.path(directory), recursive=True)
        return f"{directory}/_{last}.{uuid.uuid4().hex}.tmp"


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
