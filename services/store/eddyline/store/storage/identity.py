"""The `identity` file: the cluster and shard of a data directory, and how its last run ended.

Content: one line of JSON (sorted keys, no spaces), then the xxh3_64 of that line without its newline in 16 hex digits, and
a newline. It is replaced as a whole (temporary file, fsync, rename, directory fsync), so a crash leaves the old identity
or the new one.

I1: `clean` is true only between the last fdatasync of a clean stop and the next start. I2: `instance` grows by one at each
start.
Not here: the comparison with the configuration and the boot id, which `shard/lifecycle.py` does.
Threading: none; blocking.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_64_hexdigest

from eddyline.core.errors import DataCorrupt, NewerFormat
from eddyline.core.runtime.fs import write_all

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.core.runtime.fs import Fs
    from eddyline.store.storage.layout import Layout

FORMAT: Final = 1
IDENTITY_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Identity:
    """Content of the file. `catalog` is false until the first catalog is written.

    `wal_number` is the newest WAL file, `wal_bytes` the bytes of its frames: the end of the log at a clean stop; any other
    end is corruption. While the store runs, the number is that of the file it opened and the bytes are 0. `marked` = the
    run keeps a written mark (`written_mark.py`); identities of earlier versions lack it, which means false.
    """

    cluster_id: str
    shard_index: int
    shard_count: int
    instance: int
    boot_id: str
    clean: bool
    wal_number: int = 0
    wal_bytes: int = 0
    catalog: bool = False
    marked: bool = False
    format: int = FORMAT


_REQUIRED: Final = frozenset(field.name for field in fields(Identity)) - {"marked"}


def next_start(previous: Identity | None) -> int:
    """Return the `instance` of the next start, given the identity of the previous one."""
    return previous.instance + 1 if previous is not None else 1


def read_identity(fs: Fs, layout: Layout) -> Identity | None:
    """Return the directory's identity; None if it has none yet.

    Raises:
        DataCorrupt: the bytes fail their checksum or lack a field. NewerFormat.
    """
    path = layout.identity
    if not fs.exists(path):
        return None
    file = fs.open(path)
    try:
        return decode_identity(path, file.pread(IDENTITY_BYTES_MAX, 0))
    finally:
        file.close()


def write_identity(fs: Fs, layout: Layout, identity: Identity) -> None:
    """Replace the identity, durably."""
    file = fs.open(layout.identity_temporary, create=True)
    try:
        encoded = encode_identity(identity)
        file.truncate(0)
        write_all(file, [encoded], 0)
        file.fsync()
    finally:
        file.close()
    fs.rename(layout.identity_temporary, layout.identity)
    fs.fsync_dir(layout.data_dir)


def encode_identity(identity: Identity) -> bytes:
    """Encode an identity as the file's bytes."""
    body = {key: value for key, value in asdict(identity).items() if value or key != "marked"}
    line = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    encoded = line + b"\n" + xxh3_64_hexdigest(line).encode() + b"\n"
    assert len(encoded) <= IDENTITY_BYTES_MAX
    return encoded


def decode_identity(path: Path, encoded: bytes) -> Identity:
    """Decode the bytes of `path`; unknown keys are ignored.

    Raises:
        DataCorrupt: the bytes fail their checksum or lack a field. NewerFormat: a later version wrote them.
    """
    line, _, checksum = encoded.partition(b"\n")
    if checksum != xxh3_64_hexdigest(line).encode() + b"\n":
        raise _corrupt(path, "fails its checksum")
    body = json.loads(line)
    version = body.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise NewerFormat(f"{path} has format {version}, this version reads {FORMAT}", file=str(path), offset=0)
    if version != FORMAT:
        raise _corrupt(path, f"has format {version}, this version reads {FORMAT}")
    try:
        return Identity(
            **{field.name: body[field.name] for field in fields(Identity) if field.name in {*body, *_REQUIRED}}
        )
    except KeyError as error:
        raise _corrupt(path, f"lacks {error.args[0]}") from None


def _corrupt(path: Path, what: str) -> DataCorrupt:
    return DataCorrupt(f"{path} {what}", file=str(path), offset=0)
