"""What lies in a data directory and is named by nothing: set aside, never destroyed; and what is named and not there.

    at the top               the start is refused: a directory with files of others in it is likely no store's own. Left
                             alone are `lost+found` and names that begin with a dot, which file systems and volumes make
    named, there as .tmp     renamed: the frame that names it was synced, the rename was not
    named, and not there     the start is refused (DataCorrupt), and nothing is changed
    a temporary of ours      removed: nothing can name it any more
    garbage                  left to `garbage.py`
    anything else            moved to orphans/<YYYY-MM-DD>/, where it keeps its path relative to the data directory

I1: all is looked at before anything is changed. I2: a crash between two steps leaves them to the next start, which comes to
the same end. I3: each directory is listed once; no file is opened, so 100 000 topics cost 100 000 listings, some seconds.
Threading: synchronous; runs before anything is served.
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
    temporary,
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
"""Files told one by one in the log; of more their number."""
_LEFT_ALONE: Final = re.compile(r"lost\+found|\..*")
_SHARD_NAME: Final = re.compile(r"[0-9a-f]{2}")


class ForeignFile(Exception):
    """Something that is not a store's lies at the top of its data directory; the start is refused, and nothing is changed.

    Operator action: move it elsewhere, or name another data directory.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is not the store's: move it out of the data directory, or give the store a directory of its own "
            "(EDDYLINE_STORE_DATA_DIR). Nothing was changed"
        )
        self.path = path


class Survey(NamedTuple):
    """What was found. `unnamed` are the names that wait for their rename; `temporaries` are files, `empty` directories."""

    missing: list[Path]
    unnamed: list[Path]
    temporaries: list[Path]
    empty: list[Path]
    foreign: list[Path]


def check_top(fs: Fs, layout: Layout) -> None:
    """Look at the top of a directory, which need not exist.

    Raises:
        ForeignFile. OSError: it cannot be listed.
    """
    if fs.exists(layout.data_dir):
        for path in foreign_at_top(fs, layout):
            raise ForeignFile(path)


def foreign_at_top(fs: Fs, layout: Layout) -> list[Path]:
    """What is not a store's at the top of its directory."""
    names = [name for name in fs.listdir(layout.data_dir) if name not in layout.top_names]
    return [layout.data_dir / name for name in names if not _LEFT_ALONE.fullmatch(name)]


def survey(fs: Fs, layout: Layout, table: TopicTable, *, wal_shards: int, garbage: Collection[str]) -> Survey:
    """Look at `topics/` and `wal/`, once their frames are replayed. Nothing is changed.

    `garbage` are paths relative to the data directory, those of directories with a slash at their end.
    """
    look = _Look(fs, layout, table, garbage)
    look.topics()
    look.wal(wal_shards)
    return look.found


def resolve_orphans(
    fs: Fs, layout: Layout, table: TopicTable, *, wal_shards: int, garbage: Collection[str], now_ms: int
) -> int:
    """Bring names to what the catalog and the log say; how many files and directories were set aside. Blocking.

    Raises:
        DataCorrupt: a named file is missing; nothing was changed. OSError.
    """
    found = survey(fs, layout, table, wal_shards=wal_shards, garbage=garbage)
    if found.missing:
        raise missing_file(found.missing)
    for path in found.unnamed:
        fs.rename(temporary(path), path)
    for path in found.temporaries:
        fs.unlink(path)
    for directory in sorted({path.parent for path in (*found.unnamed, *found.temporaries)}):
        fs.fsync_dir(directory)
    for path in found.empty:
        fs.rmdir(path)
        fs.fsync_dir(path.parent)
    day = _day(now_ms)
    for number, path in enumerate(found.foreign):
        target = _set_aside(fs, layout, path, day)
        if number < LOGGED_FILES_MAX:
            logger.warning("set_aside", extra=fields(path=str(path), to=str(target)))
    if len(found.foreign) > LOGGED_FILES_MAX:
        logger.warning(
            "set_aside_more", extra=fields(count=len(found.foreign) - LOGGED_FILES_MAX, to=str(layout.orphans))
        )
    return len(found.foreign)


def missing_file(missing: Collection[Path]) -> DataCorrupt:
    """The refusal where files are missing that the catalog or the log names."""
    first = min(missing)
    others = f" (and {len(missing) - 1} others)" if len(missing) > 1 else ""
    return DataCorrupt(
        f"{first} is missing{others}: the catalog or the log names it. Put it back, or restore the data directory from a "
        "copy. Nothing was changed",
        file=str(first),
        offset=0,
    )


def with_garbage(head: CatalogHead, replay: Replay, layout: Layout) -> CatalogHead:
    """The head with what the replayed frames have let go of: files that were named once, which `garbage.py` removes."""
    gone = [f"{layout.topic_dir(topic_id).relative_to(layout.data_dir)}/" for topic_id in replay.gone]
    replaced = [str(segment.path.relative_to(layout.data_dir)) for segment in replay.replaced]
    erasing = {entry.topic_id: entry for entry in (*head.erasing, *replay.gone.values())}
    garbage = {*head.garbage, *gone, *replaced}
    return replace(head, garbage=tuple(sorted(garbage)), erasing=tuple(erasing.values()))


def files_of(topic: Topic, topic_dir: Path) -> set[str]:
    """Names of the files in a topic's directory that its segments and its base are; a base of no rows has none."""
    names = {segment.path.name for segment in topic.segments}
    if topic.base is not None and topic.base.rows:
        names.add(base_file(topic_dir, topic.base.seq, topic.base.generation).name)
    return names


class _Look:
    """A survey under way."""

    def __init__(self, fs: Fs, layout: Layout, table: TopicTable, garbage: Collection[str]) -> None:
        self._fs = fs
        self._layout = layout
        self._table = table
        self._garbage = garbage
        self.found = Survey([], [], [], [], [])

    def topics(self) -> None:
        """Every topic's directory, and those that should be there."""
        listed = self._names(self._layout.topics)
        known = set(listed)
        for topic in self._table.all():
            topic_dir = self._layout.topic_dir(topic.id)
            if topic_dir.name not in known:
                self.found.missing.extend(topic_dir / name for name in sorted(files_of(topic, topic_dir)))
        for name in listed:
            path = self._layout.topics / name
            if not self._is_garbage(path, "/"):
                self._topic(path)

    def wal(self, wal_shards: int) -> None:
        """Every WAL shard's directory."""
        for name in self._names(self._layout.wal):
            path = self._layout.wal / name
            if not self._is_garbage(path, "/"):
                self._shard(path, wal_shards)

    def _topic(self, path: Path) -> None:
        topic_id, names = parse_topic_dir(path.name), self._names_within(path)
        if topic_id is None or names is None:
            self.found.foreign.append(path)
            return
        topic = self._table.by_id(topic_id)
        if topic is None:
            # That of a topic which was deleted before any of its files was named holds nothing but temporaries.
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
                self.found.unnamed.append(path / later)
            elif later is not None:
                self.found.temporaries.append(path / name)
            elif not self._is_garbage(path / name):
                self.found.foreign.append(path / name)
        self.found.missing.extend(path / name for name in sorted(expected))

    def _shard(self, path: Path, wal_shards: int) -> None:
        names = self._names_within(path)
        if names is None or not _SHARD_NAME.fullmatch(path.name):
            self.found.foreign.append(path)
            return
        ours = [name for name in names if name == SPARE_NAME or parse_wal_temporary(name) is not None]
        if int(path.name, 16) >= wal_shards:
            # That of a layout which was never finished holds nothing but what was to be named.
            self._not_in_use(path, ours, names)
            return
        self.found.temporaries.extend(path / name for name in ours if name != SPARE_NAME)
        self.found.foreign.extend(path / name for name in names if name not in ours and not wal_numbers([name]))

    def _not_in_use(self, path: Path, ours: Collection[str], names: Collection[str]) -> None:
        if len(ours) < len(names):
            self.found.foreign.append(path)
        else:
            self.found.temporaries.extend(path / name for name in ours)
            self.found.empty.append(path)

    def _is_garbage(self, path: Path, slash: str = "") -> bool:
        return bool(self._garbage) and str(path.relative_to(self._layout.data_dir)) + slash in self._garbage

    def _names(self, directory: Path) -> list[str]:
        """Names in a directory that may not be there."""
        return self._fs.listdir(directory) if self._fs.exists(directory) else []

    def _names_within(self, path: Path) -> list[str] | None:
        """Names in a directory; None = it is none."""
        with suppress(NotADirectoryError):
            return self._fs.listdir(path)
        return None
