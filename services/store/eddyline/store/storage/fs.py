"""The file system under the name that the store knows it by; it is `eddyline.core.fs`, which clients' files use too."""

from __future__ import annotations

from eddyline.core.fs import (
    BUFFERS_MAX,
    HOLDER_BYTES_MAX,
    Buffer,
    File,
    Fs,
    Lock,
    Locked,
    RealFile,
    RealFs,
    RealLock,
    remove_directory,
    write_all,
)

__all__ = [
    "BUFFERS_MAX",
    "HOLDER_BYTES_MAX",
    "Buffer",
    "File",
    "Fs",
    "Lock",
    "Locked",
    "RealFile",
    "RealFs",
    "RealLock",
    "remove_directory",
    "write_all",
]
