"""Orphans: files in the data directory that catalog and log do not name are set aside, never destroyed; missing files are
found.

    at the top               the start is refused: a directory with foreign files is probably not a store's. Ignored are
                             `lost+found` and names that begin with a dot, which file systems and volumes make
    named, there as .tmp     renamed: the frame that names it was synced, the rename was not
    named, and missing       the start is refused (DataCorrupt), and nothing is changed
    a temporary of ours      removed: no later frame can name it
    garbage                  left to `garbage.py`
    any other file           moved to orphans/<YYYY-MM-DD>/, where it keeps its path relative to the data directory

I1: the whole directory is surveyed before any change. I2: after a crash between two steps the next start does the rest, with
the same result. I3: each directory is listed once; no file is opened, so 100 000 topics cost 100 000 listings, some seconds.
Threading: synchronous; runs before the store serves.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import DataCorrupt
from eddyline.core.runtime.logging import fields
from eddyline.store.storage.layout import (
    SPARE_NAME,
    base_file,
    parse_temporary,
    parse_topic_dir,
    parse_wal_temporary,
    temporary_file,
    wal_numbers,
)
from eddyline.store.storage.quarantine import _day, _set_aside

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from eddyline.core.runtime.fs import Fs
    from eddyline.store.catalog.catalog import CatalogHead
    from eddyline.store.log.table import TopicTable
    from eddyline.store.log.topic import Topic
    from eddyline.store.recovery.replay import Replay
    from eddyline.store.storage.layout import Layout

logger = logging.getLogger(__name__)

LOGGED_FILES_MAX: Final = 100
"""Files logged one by one; of the others the number is logged."""
_IGNORED: Final = re.compile(r"lost\+found|\..*")
_SHARD_NAME: Final = re.compile(r"[0-9a-f]{2}")


class ForeignFile(Exception):
    """A foreign file is at the top of the data directory; the start is refused, and nothing is changed.

    Operator action: move it elsewhere, or name another data directory.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} does not belong to the store: move it out of the data directory, or set another directory "
            "(EDDYLINE_STORE_DATA_DIR). Nothing was changed"
        )
        self.path = path


class Survey(NamedTuple):
    """Result of a survey. `unnamed` = final names of files to rename; `temporaries` are files, `empty` are directories."""

    missing: list[Path]
    unnamed: list[Path]
    temporaries: list[Path]
    empty: list[Path]
    foreign: list[Path]


def check_top(fs: Fs, layout: Layout) -> None:
    """Check the top of a data directory, which need not exist.

    Raises:
        ForeignFile. OSError: it cannot be listed.
    """
    if fs.exists(layout.data_dir):
        for path in foreign_at_top(fs, layout):
            raise ForeignFile(path)


def foreign_at_top(fs: Fs, layout: Layout) -> list[Path]:
    """Return the foreign files at the top of a data directory."""
    names = [name for name in fs.listdir(layout.data_dir) if name not in layout.top_names]
    return [layout.data_dir / name for name in names if not _IGNORED.fullmatch(name)]


def survey(fs: Fs, layout: Layout, table: TopicTable, *, wal_shards: int, garbage: Collection[str]) -> Survey:
    """Survey `topics/` and `wal/`, once all frames are replayed. Nothing is changed.

    `garbage` are paths relative to the data directory; those of directories end in a slash.
    """
    surveyor = _Surveyor(fs, layout, table, garbage)
    surveyor.topics()
    surveyor.wal(wal_shards)
    return surveyor.result


def resolve_orphans(
    fs: Fs, layout: Layout, table: TopicTable, *, wal_shards: int, garbage: Collection[str], now_ms: int
) -> int:
    """Make the directory's files those that catalog and log name. Returns the number of paths set aside. Blocking.

    Raises:
        DataCorrupt: a named file is missing; nothing was changed. OSError.
    """
    result = survey(fs, layout, table, wal_shards=wal_shards, garbage=garbage)
    if result.missing:
        raise missing_file(result.missing)
    for path in result.unnamed:
        fs.rename(temporary_file(path), path)
    for path in result.temporaries:
        fs.unlink(path)
    for directory in sorted({path.parent for path in (*result.unnamed, *result.temporaries)}):
        fs.fsync_dir(directory)
    for path in result.empty:
        fs.rmdir(path)
        fs.fsync_dir(path.parent)
    day = _day(now_ms)
    for number, path in enumerate(result.foreign):
        target = _set_aside(fs, layout, path, day)
        if number < LOGGED_FILES_MAX:
            logger.warning("set_aside", extra=fields(path=str(path), to=str(target)))
    if len(result.foreign) > LOGGED_FILES_MAX:
        logger.warning(
            "set_aside_more", extra=fields(count=len(result.foreign) - LOGGED_FILES_MAX, to=str(layout.orphans))
        )
    return len(result.foreign)


def missing_file(missing: Collection[Path]) -> DataCorrupt:
    """Make the error for files that the catalog or the log names and that are missing."""
    first = min(missing)
    others = f" (and {len(missing) - 1} others)" if len(missing) > 1 else ""
    return DataCorrupt(
        f"{first} is missing{others}, and the catalog or the log names it. Put it back, or restore the data directory "
        "from a copy. Nothing was changed",
        file=str(first),
        offset=0,
    )


def with_garbage(head: CatalogHead, replay: Replay, layout: Layout) -> CatalogHead:
    """Return the head with the files that replayed frames replaced added to its garbage, for `garbage.py` to remove."""
    gone = [f"{layout.topic_dir(topic_id).relative_to(layout.data_dir)}/" for topic_id in replay.gone]
    replaced = [str(segment.path.relative_to(layout.data_dir)) for segment in replay.replaced]
    erasing = {entry.topic_id: entry for entry in (*head.erasing, *replay.gone.values())}
    garbage = {*head.garbage, *gone, *replaced}
    return replace(head, garbage=tuple(sorted(garbage)), erasing=tuple(erasing.values()))


def files_of(topic: Topic, topic_dir: Path) -> set[str]:
    """Return the names of a topic's segment and base files; a base without rows has no file."""
    names = {segment.path.name for segment in topic.segments}
    if topic.base is not None and topic.base.rows:
        names.add(base_file(topic_dir, topic.base.seq, topic.base.generation).name)
    return names


class _Surveyor:
    """Walks the directories of one survey."""

    def __init__(self, fs: Fs, layout: Layout, table: TopicTable, garbage: Collection[str]) -> None:
        self._fs = fs
        self._layout = layout
        self._table = table
        self._garbage = garbage
        self.result = Survey([], [], [], [], [])

    def topics(self) -> None:
        """Survey every topic's directory, existing or expected."""
        listed = self._names(self._layout.topics)
        existing = set(listed)
        for topic in self._table.all():
            topic_dir = self._layout.topic_dir(topic.id)
            if topic_dir.name not in existing:
                self.result.missing.extend(topic_dir / name for name in sorted(files_of(topic, topic_dir)))
        for name in listed:
            path = self._layout.topics / name
            if not self._is_garbage(path, "/"):
                self._topic(path)

    def wal(self, wal_shards: int) -> None:
        """Survey every WAL shard's directory."""
        for name in self._names(self._layout.wal):
            path = self._layout.wal / name
            if not self._is_garbage(path, "/"):
                self._shard(path, wal_shards)

    def _topic(self, path: Path) -> None:
        topic_id, names = parse_topic_dir(path.name), self._names_within(path)
        if topic_id is None or names is None:
            self.result.foreign.append(path)
            return
        topic = self._table.by_id(topic_id)
        if topic is None:
            # A topic that was deleted before its first file was named has only temporaries.
            leftover = [name for name in names if parse_temporary(name) is not None]
            self._not_in_use(path, leftover if self._table.saw_id(topic_id) else (), names)
            return
        expected = files_of(topic, path)
        for name in names:
            later = parse_temporary(name)
            if name in expected:
                expected.discard(name)
            elif later in expected and later not in names:
                expected.discard(later)
                self.result.unnamed.append(path / later)
            elif later is not None:
                self.result.temporaries.append(path / name)
            elif not self._is_garbage(path / name):
                self.result.foreign.append(path / name)
        self.result.missing.extend(path / name for name in sorted(expected))

    def _shard(self, path: Path, wal_shards: int) -> None:
        names = self._names_within(path)
        if names is None or not _SHARD_NAME.fullmatch(path.name):
            self.result.foreign.append(path)
            return
        ours = [name for name in names if name == SPARE_NAME or parse_wal_temporary(name) is not None]
        if int(path.name, 16) >= wal_shards:
            # A shard of an unfinished new layout has only temporaries.
            self._not_in_use(path, ours, names)
            return
        self.result.temporaries.extend(path / name for name in ours if name != SPARE_NAME)
        self.result.foreign.extend(path / name for name in names if name not in ours and not wal_numbers([name]))

    def _not_in_use(self, path: Path, ours: Collection[str], names: Collection[str]) -> None:
        if len(ours) < len(names):
            self.result.foreign.append(path)
        else:
            self.result.temporaries.extend(path / name for name in ours)
            self.result.empty.append(path)

    def _is_garbage(self, path: Path, slash: str = "") -> bool:
        return bool(self._garbage) and str(path.relative_to(self._layout.data_dir)) + slash in self._garbage

    def _names(self, directory: Path) -> list[str]:
        """Return the names in a directory, which need not exist."""
        return self._fs.listdir(directory) if self._fs.exists(directory) else []

    def _names_within(self, path: Path) -> list[str] | None:
        """Return the names in a directory; None = the path is no directory."""
        with suppress(NotADirectoryError):
            return self._fs.listdir(path)
        return None
