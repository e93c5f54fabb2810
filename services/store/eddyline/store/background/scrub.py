"""Scrubbing: reads and verifies every segment and base, slowly and repeatedly, so that damage is detected early.

Topic after topic, piece by piece, as many bytes as the time passed allows; unused allowance is capped at a few batches. A
damaged piece is counted and logged with its file and offset; reads of it fail (`DataCorrupt`), all others are served.
Not promised: that pages in the kernel's cache are read from the disk.
Threading: event loop; files are read on the background thread, a piece at a time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from eddyline.core.errors import DataCorrupt
from eddyline.store.log.control import segment_of_base
from eddyline.store.storage.segment.reader import open_segment, read_footer, read_message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from eddyline.core.runtime.clock import Clock
    from eddyline.core.runtime.fs import Fs
    from eddyline.store.log.segments import Segment
    from eddyline.store.log.table import TopicTable
    from eddyline.store.log.topic import Topic
    from eddyline.store.runtime.workers import Worker
    from eddyline.store.storage.layout import Layout
    from eddyline.store.storage.segment.footer import BatchEntry

SAVED_BYTES_MAX: Final = 16 << 20
"""Allowance that may accumulate while other jobs run: two of the largest record batches, so that scrubbing never bursts."""


class Scrubber:
    """Scrubs the files of one store."""

    def __init__(
        self,
        *,
        fs: Fs,
        layout: Layout,
        table: TopicTable,
        worker: Worker,
        clock: Clock,
        bytes_per_s: int,
        on_corrupt: Callable[[DataCorrupt], None],
    ) -> None:
        self._fs = fs
        self._layout = layout
        self._table = table
        self._worker = worker
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._on_corrupt = on_corrupt
        self._saved_bytes = 0.0
        self._last_s = clock.monotonic_s()
        self._pass: AsyncGenerator[int, None] | None = None
        self.pass_count = 0
        """Completed passes over all files."""

    @property
    def is_due(self) -> bool:
        """True = some bytes may be read."""
        now_s = self._clock.monotonic_s()
        self._saved_bytes = min(self._saved_bytes + (now_s - self._last_s) * self._bytes_per_s, SAVED_BYTES_MAX)
        self._last_s = now_s
        return self._saved_bytes > 0

    async def round(self) -> None:
        """Verify as many pieces as the time allows, at most one pass."""
        while self._saved_bytes > 0:
            if self._pass is None:
                self._pass = self._pieces()
            verified_bytes = await anext(self._pass, None)
            if verified_bytes is None:
                self._pass = None
                self.pass_count += 1
                return
            self._saved_bytes -= verified_bytes

    async def close(self) -> None:
        """Release the file being read."""
        if self._pass is not None:
            await self._pass.aclose()
            self._pass = None

    async def _pieces(self) -> AsyncGenerator[int, None]:
        """Verify all files; yields the bytes of each verified piece."""
        for topic in filter(_has_files, self._table.all()):
            if topic.base is not None and topic.base.rows:
                base = segment_of_base(topic.base, self._layout.topic_dir(topic.id))
                async for verified_bytes in self._of_file(topic, base):
                    yield verified_bytes
            seq = 0
            while not topic.deleted and (segment := topic.segments.after(seq)) is not None:
                seq = segment.summary.last_seq
                async for verified_bytes in self._of_file(topic, segment):
                    yield verified_bytes

    async def _of_file(self, topic: Topic, segment: Segment) -> AsyncGenerator[int, None]:
        segment.hold()
        try:
            footer = await self._worker.submit(partial(read_footer, self._fs, segment.path))
            yield segment.summary.file_bytes - sum(entry.length for entry in footer.batches)
            for entry in footer.batches:
                try:
                    await self._worker.submit(partial(_verify, self._fs, segment.path, entry))
                except DataCorrupt as error:
                    if self._is_removed(topic, segment):
                        return
                    self._on_corrupt(error)
                yield entry.length
        except DataCorrupt as error:
            if not self._is_removed(topic, segment):
                self._on_corrupt(error)
        finally:
            segment.let_go()

    def _is_removed(self, topic: Topic, segment: Segment) -> bool:
        """Return whether the file was removed meanwhile: files of deleted topics and old bases are removed during reads."""
        if topic.deleted or segment.replaced:
            return True
        is_base = segment.summary.first_seq == 0
        return is_base and (topic.base is None or topic.base.generation != segment.summary.generation)


def _has_files(topic: Topic) -> bool:
    """Return whether the topic has a segment or a base."""
    return len(topic.segments) > 0 or topic.base is not None


def _verify(fs: Fs, path: Path, entry: BatchEntry) -> None:
    """Verify one record batch of a file. Blocking.

    Raises:
        DataCorrupt.
    """
    file = open_segment(fs, path)
    try:
        read_message(file, path, entry)
    finally:
        file.close()
