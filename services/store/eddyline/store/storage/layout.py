"""Every path of a data directory; no other module builds a file name.

<data_dir>/   identity  LOCK  catalog/  fold/  wal/<shard, 2 hex>/{<number, 16 hex>.wal, spare}  orphans/
              topics/<topic id, 16 hex>/{seg-<first>-<last>-<generation>.arrow, base-<seq>-<generation>.arrow}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.core.runtime.fs import Fs

_WAL_NAME: Final = re.compile(r"([0-9a-f]{16})\.wal")
_TOPIC_NAME: Final = re.compile(r"[0-9a-f]{16}")
_SEGMENT_NAME: Final = re.compile(r"seg-([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{8})\.arrow")
_BASE_NAME: Final = re.compile(r"base-([0-9a-f]{16})-([0-9a-f]{8})\.arrow")
_TEMPORARY: Final = ".tmp"
SPARE_NAME: Final = "spare"


class SegmentId(NamedTuple):
    """Identity of a segment in its topic: first and last seq, and the generation, which a topic never uses twice."""

    first_seq: int
    last_seq: int
    generation: int


class BaseId(NamedTuple):
    """Identity of a base in its topic: the seq of the snapshot, and the generation."""

    seq: int
    generation: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below one data directory."""

    data_dir: Path

    @property
    def identity(self) -> Path:
        """The identity file; see `identity.py`."""
        return self.data_dir / "identity"

    @property
    def identity_temporary(self) -> Path:
        """The next identity before its rename."""
        return self.data_dir / "identity.tmp"

    @property
    def lock(self) -> Path:
        """The lock file; the process that holds it is the only one that may touch the directory."""
        return self.data_dir / "LOCK"

    @property
    def fold(self) -> Path:
        """Directory of the fold's RocksDB."""
        return self.data_dir / "fold"

    @property
    def catalog(self) -> Path:
        """Directory of the catalog's RocksDB."""
        return self.data_dir / "catalog"

    @property
    def topics(self) -> Path:
        """Parent of the topic directories; a topic has one if it has segments or a base."""
        return self.data_dir / "topics"

    def topic_dir(self, topic_id: int) -> Path:
        """Directory of one topic's segments and its fold's base."""
        return self.topics / f"{topic_id:016x}"

    @property
    def staging(self) -> Path:
        """Directory of artifacts during export and import; emptied at each start. Older versions ignore names that
        begin with a dot."""
        return self.data_dir / ".artifacts"

    @property
    def orphans(self) -> Path:
        """Directory of files that neither catalog nor log names: unknown files are moved, never deleted."""
        return self.data_dir / "orphans"

    @property
    def wal(self) -> Path:
        """Parent of the WAL shard directories."""
        return self.data_dir / "wal"

    def wal_shard(self, shard: int) -> Path:
        """Directory of one WAL shard's files."""
        return self.wal / f"{shard:02x}"

    @property
    def top_names(self) -> frozenset[str]:
        """Every name that a store creates at the top of its directory."""
        ours = (
            self.identity,
            self.identity_temporary,
            self.lock,
            self.fold,
            self.catalog,
            self.topics,
            self.orphans,
            self.wal,
        )
        return frozenset(path.name for path in ours)

    def make_directories(self, fs: Fs, *, shard: int = 0) -> None:
        """Create missing directories down to the WAL shard's, durably. The data directory's parent must exist."""
        for directory in (self.data_dir, self.wal, self.wal_shard(shard)):
            if not fs.exists(directory):
                fs.mkdir(directory)
            fs.fsync_dir(directory.parent)

    def make_topic_dir(self, fs: Fs, topic_id: int) -> Path:
        """Create a topic's directory if it is missing, durably, and return it."""
        for directory in (self.topics, self.topic_dir(topic_id)):
            if not fs.exists(directory):
                fs.mkdir(directory)
            fs.fsync_dir(directory.parent)
        return self.topic_dir(topic_id)


def wal_file(directory: Path, number: int) -> Path:
    """Path of a WAL file in a shard's directory."""
    return directory / f"{number:016x}.wal"


def wal_spare(directory: Path) -> Path:
    """Path of the zero-filled file that becomes the next WAL file."""
    return directory / SPARE_NAME


def wal_numbers(names: list[str]) -> list[int]:
    """Return the numbers of the WAL files among `names`, ascending; other names are ignored."""
    return sorted(int(match[1], 16) for name in names if (match := _WAL_NAME.fullmatch(name)))


def parse_wal_temporary(name: str) -> int | None:
    """Return the number of a temporary WAL file; None if `name` is not one."""
    numbers = wal_numbers([name.removesuffix(_TEMPORARY)])
    return numbers[0] if numbers and name.endswith(_TEMPORARY) else None


def parse_topic_dir(name: str) -> int | None:
    """Return the topic id of a directory name; None if it is not a topic's directory."""
    return int(name, 16) if _TOPIC_NAME.fullmatch(name) else None


def segment_file(directory: Path, segment: SegmentId) -> Path:
    """Path of a segment in a topic's directory."""
    return directory / f"seg-{segment.first_seq:016x}-{segment.last_seq:016x}-{segment.generation:08x}.arrow"


def base_file(directory: Path, seq: int, generation: int) -> Path:
    """Path of a base in a topic's directory."""
    return directory / f"base-{seq:016x}-{generation:08x}.arrow"


def temporary_file(path: Path) -> Path:
    """Path of the file before its rename."""
    return path.with_name(path.name + _TEMPORARY)


def parse_temporary(name: str) -> str | None:
    """Return the final name of a temporary segment or base; None if `name` is not one."""
    name_later = name.removesuffix(_TEMPORARY)
    named = parse_segment_name(name_later) or parse_base_name(name_later)
    return name_later if named is not None and name_later != name else None


def parse_segment_name(name: str) -> SegmentId | None:
    """Parse a segment's file name; None if it is not one."""
    match = _SEGMENT_NAME.fullmatch(name)
    return None if match is None else SegmentId(int(match[1], 16), int(match[2], 16), int(match[3], 16))


def parse_base_name(name: str) -> BaseId | None:
    """Parse a base's file name; None if it is not one."""
    match = _BASE_NAME.fullmatch(name)
    return None if match is None else BaseId(int(match[1], 16), int(match[2], 16))
