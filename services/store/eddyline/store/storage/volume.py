"""File system type of the data directory, and why some types are unsuitable for a store.

etcd, NATS and RocksDB do not warn: a stale handle of a network file system ends their writes for good, and a memory disk
is empty after a restart. The store logs a warning at its start but does not refuse, because a test or a cache may want
such a disk.
Not promised: a type that is in neither table is unknown, not suitable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mountinfo")
"""Linux only; if it is missing, the type is unknown."""
NETWORK: Final = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "fuse.sshfs", "afs", "lustre")
)
MEMORY: Final = frozenset(("tmpfs", "ramfs"))

_ESCAPES: Final = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


def volume_type(directory: Path) -> str:
    """Return the type of the file system that contains `directory`, which need not exist yet; "" = unknown."""
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    return type_in(mounts, directory.resolve())


def type_in(mounts: str, directory: Path) -> str:
    """The same from a mount table in Linux's format (mountinfo); of two mounts on one path the later one wins."""
    best, longest = "", -1
    for line in mounts.splitlines():
        mounted, separator, volume = line.partition(" - ")
        columns = mounted.split(" ")
        if not separator or len(columns) < 5:
            continue
        mount = Path(_unescaped(columns[4]))
        if directory.is_relative_to(mount) and len(mount.parts) >= longest:
            best, longest = volume.split(" ")[0], len(mount.parts)
    return best


def unsuitable_volume(kind: str) -> str:
    """Return why a file system of type `kind` is unsuitable for data; "" = no known reason."""
    if kind in NETWORK:
        return f"the data directory is on a network file system ({kind}): locks and fdatasync may not hold there"
    if kind in MEMORY:
        return f"the data directory is in memory ({kind}): a reboot loses it"
    return ""


def _unescaped(path: str) -> str:
    for escape, character in _ESCAPES:
        path = path.replace(escape, character)
    return path
