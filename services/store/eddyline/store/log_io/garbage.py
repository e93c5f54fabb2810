"""Garbage: replaced files, unlinked when their last reader releases them, and listed in the catalog until then.

A garbage file was part of the log until a committed frame replaced it: removing it loses nothing. A file that was never part
of the log is not garbage: recovery sets it aside (`orphans.py`). Garbage also lists the deleted topics that WAL files and
fold still hold.
I1: a path stays in `paths` until it is removed from the disk, so that a checkpoint before the unlink still lists it.
Failure: a removal that fails is tried again at the next `sweep`, or by the next start.
Threading: event loop; files are removed on the background thread.
"""

from __future__ import annotations

import errno
import logging
from functools import partial
from typing import TYPE_CHECKING

from eddyline.core.runtime.logging import fields
from eddyline.store.catalog.catalog import ErasingEntry
from eddyline.store.storage.layout import temporary_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from eddyline.store.catalog.catalog import CatalogHead
    from eddyline.store.log.segments import Segment
    from eddyline.store.log.topic import Topic
    from eddyline.store.log_io.files import LogFiles
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.storage.layout import Layout

logger = logging.getLogger(__name__)


class Garbage:
    """Files and deleted topics to remove from one data directory."""

    def __init__(self, *, layout: Layout, files: LogFiles, worker: Worker, erase_within_ms: int) -> None:
        self._layout = layout
        self._files = files
        self._worker = worker
        self._erase_within_ms = erase_within_ms
        self._paths: dict[str, bool] = {}
        self.erasing: dict[int, ErasingEntry] = {}
        """Deleted topics by id, until WAL and fold no longer hold their records (`background/erasure.py`)."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Relative to the data directory; a topic's directory ends in a slash."""
        return tuple(sorted(self._paths))

    def add_segments(self, segments: Sequence[Segment]) -> None:
        """Add replaced segments: each becomes removable once its last reader releases it."""
        for segment in segments:
            self._paths[self._name(segment.path)] = False
            segment.replace(lambda freed: self._add_file(freed.path))

    def restore(self, head: CatalogHead, segments: Sequence[Segment], gone: Iterable[ErasingEntry]) -> None:
        """Add the garbage of earlier runs, as listed by the catalog and the log after it."""
        self._paths.update(dict.fromkeys(head.garbage, True))
        for segment in segments:
            self._add_file(segment.path)
        for entry in gone:
            self._paths[self._directory(entry.topic_id)] = True
        self.erasing.update((entry.topic_id, entry) for entry in (*head.erasing, *gone))

    def _directory(self, topic_id: int) -> str:
        """Return a topic's directory in the form of `paths`."""
        return self._name(self._layout.topic_dir(topic_id)) + "/"

    def has_files_of(self, topic_id: int) -> bool:
        """Return whether some file of the topic is not removed yet."""
        directory = self._directory(topic_id)
        return any(name.startswith(directory) for name in self._paths)

    def _add_file(self, path: Path) -> None:
        """Add a file without readers."""
        self._paths[self._name(path)] = True

    def add_topic(self, topic: Topic) -> None:
        """Add a deleted topic's directory and free its memory; its readers keep unlinked files open until they end."""
        if topic.next_generation > 1:  # it has files, or its first is being written
            self._paths[self._directory(topic.id)] = True
        if not topic.is_ephemeral:
            due_ms = topic.last_ts_ms + self._erase_within_ms
            self.erasing[topic.id] = ErasingEntry(topic.id, due_ms, topic.folds)
        if topic.memory is not None:
            topic.memory.drop_through(topic.head_seq)

    async def sweep(self) -> None:
        """Remove files without readers."""
        ready = [name for name, free in self._paths.items() if free]
        if not ready:
            return
        for name in await self._worker.submit(partial(self._remove, ready)):
            self._paths.pop(name, None)  # another sweep may have removed it too

    def _remove(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if remove_named(self._files, self._layout, name)]

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._layout.data_dir))


def remove_named(files: LogFiles, layout: Layout, name: str) -> bool:
    """Remove a file or a topic's directory of the data directory; True = it is removed. Blocking."""
    path, fs = layout.data_dir / name, files.fs
    try:
        if not name.endswith("/") and fs.exists(temporary_file(path)):
            fs.unlink(temporary_file(path))  # part of the log, but the file was never renamed
        if not fs.exists(path):
            return True
        if name.endswith("/"):
            for inside in fs.listdir(path):
                files.forget(path / inside)
                fs.unlink(path / inside)
            fs.rmdir(path)
        else:
            files.forget(path)
            fs.unlink(path)
        fs.fsync_dir(path.parent)
    except OSError as error:
        logger.warning("garbage_stays", extra=fields(path=str(path), error=errno.errorcode.get(error.errno or 0, "")))
        return False
    return True
