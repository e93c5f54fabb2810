"""Start-up errors as one line of text that names the operator's action.

Threading: pure functions.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import DataCorrupt, EddylineError, NewerFormat
from eddyline.core.runtime.fs import Locked
from eddyline.store.catalog.catalog import CatalogFailed
from eddyline.store.fold.fold import FoldFailed

if TYPE_CHECKING:
    from pathlib import Path

_TO_DO: Final = {
    errno.EACCES: "give the store's user (uid {uid}) read and write access to it and its content",
    errno.EPERM: "give the store's user (uid {uid}) read and write access to it and its content",
    errno.EROFS: "its file system is read-only: mount it for writing; after a disk error check the disk first",
    errno.ENOTDIR: "it, or a part of its path, is a file: set another directory",
    errno.EISDIR: "a directory is at the path of a file: move it out of the data directory",
    errno.EEXIST: "a file is at the path of a directory: set another directory",
    errno.ENOSPC: "free space on its file system; do not remove the store's files",
    errno.EDQUOT: "raise the quota; do not remove the store's files",
    errno.EIO: "the disk has errors: check it; if files are damaged, restore the data directory from a copy",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files",
    errno.ENOMEM: "give the store more memory",
}


def startup_error_text(error: Exception, data_dir: Path) -> str:
    """Return one line about the error that ended a start."""
    if isinstance(error, Locked):
        text = f"the data directory is in use: {error}: stop that process, or set another directory"
    elif isinstance(error, NewerFormat):
        text = f"{error.reason}: {error.message}: start the version that wrote it, or a later one. Nothing was changed"
    elif isinstance(error, DataCorrupt) and "Nothing was changed" not in error.message:
        text = (
            f"{error.reason}: {error.message}. Nothing was cut or removed: keep the directory, check it with "
            f"`eddyline fsck {data_dir}`, and restore it from a copy"
        )
    elif isinstance(error, EddylineError):
        text = f"{error.reason}: {error.message}"
    elif isinstance(error, OSError):
        text = f"the data directory {data_dir} cannot be used: {error}{_to_do(error)}"
    elif isinstance(error, FoldFailed | CatalogFailed):
        text = f"the data directory {data_dir} cannot be used: {error}"
    else:
        text = str(error)
    return " ".join(text.split())


def _to_do(error: OSError) -> str:
    known = _TO_DO.get(error.errno or 0)
    return ": " + known.format(uid=os.geteuid()) if known is not None else ""
