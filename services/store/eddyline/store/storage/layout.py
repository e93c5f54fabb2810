"""Every path of a data directory. Nobody else knows a file's name.

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
    """Which segment of a topic: its first and last seq, and the generation, which is never used twice in a topic."""

    first_seq: int
    last_seq: int
    generation: int


class BaseId(NamedTuple):
    """Which base of a topic's fold: the seq it was taken at, and the generation."""

    seq: int
    generation: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths below one data directory."""

    data_dir: Path

    @property
    def identity(self) -> Path:
        """Which directory this is; see `identity.py`."""
        return self.data_dir / "identity"

    @property
    def identity_temporary(self) -> Path:
        """The next identity, until it is renamed."""
        return self.data_dir / "identity.tmp"

    @property
    def lock(self) -> Path:
        """Held by the one process that may touch anything here."""
        return self.data_dir / "LOCK"

    @property
    def fold(self) -> Path:
        """The fold's RocksDB."""
        return self.data_dir / "fold"

    @property
    def catalog(self) -> Path:
        """The catalog's RocksDB."""
        return self.data_dir / "catalog"

    @property
    def topics(self) -> Path:
        """One directory a topic that has segments or a base."""
        return self.data_dir / "topics"

    def topic_dir(self, topic_id: int) -> Path:
        """Where one topic's segments and its fold's base lie."""
        return self.topics / f"{topic_id:016x}"

    @property
    def staging(self) -> Path:
        """Where artifacts are on their way in or out; emptied at a start. A name with a dot, which older versions let
        alone."""
        return self.data_dir / ".artifacts"

    @property
    def orphans(self) -> Path:
        """Where files go that nobody names: nothing is destroyed by being unknown."""
        return self.data_dir / "orphans"

    @property
    def wal(self) -> Path:
        """One directory a WAL shard."""
        return self.data_dir / "wal"

    def wal_shard(self, shard: int) -> Path:
        """Where one WAL shard's files lie."""
        return self.wal / f"{shard:02x}"

    @property
    def top_names(self) -> frozenset[str]:
        """Every name that a store gives at the top of its directory."""
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
        """Make what is missing down to the WAL shard's directory, durably. The data directory's parent must exist."""
        for directory in (self.data_dir, self.wal, self.wal_shard(shard)):
            if not fs.exists(directory):
                fs.mkdir(directory)
            fs.fsync_dir(directory.parent)

    def make_topic_dir(self, fs: Fs, topic_id: int) -> Path:
        """Make a topic's directory where it is missing, durably."""
        for directory in (self.topics, self.topic_dir(topic_id)):
            if not fs.exists(directory):
                fs.mkdir(directory)
            fs.fsync_dir(directory.parent)
        return self.topic_dir(topic_id)


def wal_file(directory: Path, number: int) -> Path:
    """A WAL file of a shard's directory."""
    return directory / f"{number:016x}.wal"


def wal_spare(directory: Path) -> Path:
    """The zero-filled file that becomes the next WAL file."""
    return directory / SPARE_NAME


def wal_numbers(names: list[str]) -> list[int]:
    """The numbers of the WAL files among a directory's names, ascending; whatever else lies there is let alone."""
    return sorted(int(match[1], 16) for name in names if (match := _WAL_NAME.fullmatch(name)))


def parse_wal_temporary(name: str) -> int | None:
    """The number of a WAL file that waits for its name; None = no such name."""
    numbers = wal_numbers([name.removesuffix(_TEMPORARY)])
    return numbers[0] if numbers and name.endswith(_TEMPORARY) else None


def parse_topic_dir(name: str) -> int | None:
    """The topic's id, of its directory's name; None = no such name."""
    return int(name, 16) if _TOPIC_NAME.fullmatch(name) else None


def segment_file(directory: Path, segment: SegmentId) -> Path:
    """A segment of a topic's directory."""
    return directory / f"seg-{segment.first_seq:016x}-{segment.last_seq:016x}-{segment.generation:08x}.arrow"


def base_file(directory: Path, seq: int, generation: int) -> Path:
    """A base of the fold of a topic's directory."""
    return directory / f"base-{seq:016x}-{generation:08x}.arrow"


def temporary(path: Path) -> Path:
    """The file's name until it is renamed."""
    return path.with_name(path.name + _TEMPORARY)


def parse_temporary(name: str) -> str | None:
    """The name that a temporary file is to get; None = no temporary of ours."""
    name_later = name.removesuffix(_TEMPORARY)
    named = parse_segment_name(name_later) or parse_base_name(name_later)
    return name_later if named is not None and name_later != name else None


def parse_segment_name(name: str) -> SegmentId | None:
    """Which segment a file's name says; None = no segment's name."""
    match = _SEGMENT_NAME.fullmatch(name)
    return None if match is None else SegmentId(int(match[1], 16), int(match[2], 16), int(match[3], 16))


def parse_base_name(name: str) -> BaseId | None:
    """Which base a file's name says; None = no base's name."""
    match = _BASE_NAME.fullmatch(name)
    return None if match is None else BaseId(int(match[1], 16), int(match[2], 16))
