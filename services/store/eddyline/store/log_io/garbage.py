"""Files that nothing names any more: unlinked when the last reader lets go, and remembered by the catalog until then.

What is in here was named once and is replaced by a committed frame: removing it loses nothing. What was never named is not
garbage: recovery sets it aside (`orphans.py`). Of deleted topics it also remembers which still lie in WAL files and fold.
I1: a path stays in `paths` until it is gone from the disk, so that a checkpoint before the unlink forgets none.
Failure: what cannot be removed now is tried again at the next `sweep`, or by the next start.
Threading: event loop; files are removed on the background thread.
"""

from __future__ import annotations

import errno
import logging
from functools import partial
from typing import TYPE_CHECKING

from eddyline.core.runtime.logging import fields
from eddyline.store.catalog.catalog import ErasingEntry
from eddyline.store.storage.layout import temporary

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
    """What is to be removed from one data directory."""

    def __init__(self, *, layout: Layout, files: LogFiles, worker: Worker, erase_within_ms: int) -> None:
        self._layout = layout
        self._files = files
        self._worker = worker
        self._erase_within_ms = erase_within_ms
        self._paths: dict[str, bool] = {}
        self.erasing: dict[int, ErasingEntry] = {}
        """Deleted topics by id, until WAL and fold hold nothing of them (`erase_topic.py`)."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Relative to the data directory; a topic's directory ends in a slash."""
        return tuple(sorted(self._paths))

    def segments(self, segments: Sequence[Segment]) -> None:
        """Segments that were replaced: each goes once nobody reads it."""
        for segment in segments:
            self._paths[self._name(segment.path)] = False
            segment.replace(lambda freed: self.file(freed.path))

    def replayed(self, head: CatalogHead, segments: Sequence[Segment], gone: Iterable[ErasingEntry]) -> None:
        """What an earlier run had not removed yet, as the catalog and the log behind it say."""
        self._paths.update(dict.fromkeys(head.garbage, True))
        for segment in segments:
            self.file(segment.path)
        for entry in gone:
            self._paths[self.directory(entry.topic_id)] = True
        self.erasing.update((entry.topic_id, entry) for entry in (*head.erasing, *gone))

    def directory(self, topic_id: int) -> str:
        """A topic's directory, as `paths` names it."""
        return self._name(self._layout.topic_dir(topic_id)) + "/"

    def of_topic(self, topic_id: int) -> bool:
        """True = some file of the topic is still to be removed."""
        directory = self.directory(topic_id)
        return any(name.startswith(directory) for name in self._paths)

    def file(self, path: Path) -> None:
        """A file that nobody reads."""
        self._paths[self._name(path)] = True

    def topic(self, topic: Topic) -> None:
        """A deleted topic's directory and memory, whoever still reads them: blocks live as long as their file is open."""
        if topic.next_generation > 1:  # it has files, or its first is being written
            self._paths[self.directory(topic.id)] = True
        if not topic.is_ephemeral:
            due_ms = topic.last_ts_ms + self._erase_within_ms
            self.erasing[topic.id] = ErasingEntry(topic.id, due_ms, topic.folds)
        if topic.memory is not None:
            topic.memory.drop_through(topic.head_seq)

    async def sweep(self) -> None:
        """Remove what nobody reads any more."""
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
    """Remove a file or a topic's directory of the data directory; True = it is gone. Blocking."""
    path, fs = layout.data_dir / name, files.fs
    try:
        if not name.endswith("/") and fs.exists(temporary(path)):
            fs.unlink(temporary(path))  # named in the log, but the file never got its name
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
