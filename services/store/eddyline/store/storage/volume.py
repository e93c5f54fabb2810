"""What kind of file system a directory is on, and why that is no place for a store's data.

Elsewhere (etcd, NATS, RocksDB) nothing is said, until a stale handle of a network file system ends the writes for good or a
memory disk is empty after a restart. Here it is a warning at the start and no refusal: a test or a cache may want it.
Not promised: a kind that is not in the tables is nothing known, not a good place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mountinfo")
"""Linux only; where it is missing nothing is known."""
NETWORK: Final = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "fuse.sshfs", "afs", "lustre")
)
MEMORY: Final = frozenset(("tmpfs", "ramfs"))

_ESCAPES: Final = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


def volume_type(directory: Path) -> str:
    """The type of the file system that a directory is on, or will be on once it is made; "" = unknown."""
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    return type_in(mounts, directory.resolve())


def type_in(mounts: str, directory: Path) -> str:
    """The same by a table of mounts, as Linux writes it (mountinfo); of two mounts on one place the later holds."""
    found, longest = "", -1
    for line in mounts.splitlines():
        mounted, separator, volume = line.partition(" - ")
        places = mounted.split(" ")
        if not separator or len(places) < 5:
            continue
        place = Path(_unescaped(places[4]))
        if directory.is_relative_to(place) and len(place.parts) >= longest:
            found, longest = volume.split(" ")[0], len(place.parts)
    return found


def unsuitable_volume(kind: str) -> str:
    """Why a file system of this type is no place for data; "" = nothing known against it."""
    if kind in NETWORK:
        return f"the data directory is on a network file system ({kind}): locks and fdatasync may not hold there"
    if kind in MEMORY:
        return f"the data directory is in memory ({kind}): a restart of the machine takes all of it"
    return ""


def _unescaped(place: str) -> str:
    for escape, character in _ESCAPES:
        place = place.replace(escape, character)
    return place
