"""A local fold's file and its memory, changed together: what is in memory is in the file, whatever is cancelled.

I1: memory changes only after the file took the same, and always then: a cancelled change is awaited first.
I2: the file's calls, and what they leave, belong to one thread; memory belongs to the loop.
A change costs no sync: `upkeep` syncs in the background, and what a power failure takes meanwhile comes again from the
cluster. Failure: an error of the disk is raised by this change or the next one; the file is to be opened again then.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from eddyline.client.local_fold.file import BaseWriter, groups, is_fold_file, new_path, open_file, write_base
from eddyline.client.local_fold.frame import FoldPosition, FoldScope
from eddyline.client.local_fold.memory import FoldMap
from eddyline.client.watch.worker_thread import WorkerThread
from eddyline.core.errors import DataCorrupt, InvalidArgument, NewerFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from eddyline.client.local_fold.file import FoldFile
    from eddyline.client.local_fold.frame import Change
    from eddyline.core.runtime.fs import Fs

MEASURE_BYTES: Final = 64 << 20
"""How much of a file is read between two looks at the memory that it takes."""


def load_fold(
    fs: Fs, path: Path, scope: FoldScope, *, memory_bytes_max: int, for_writing: bool
) -> tuple[FoldFile, FoldMap]:
    """Read a file. Of `scope` an empty topic is any. Blocking.

    Raises:
        FileNotFoundError: there is none. DataCorrupt, NewerFormat: it cannot be read. MemoryFull: it is more than is
            allowed. InvalidArgument: it is of another topic, or of other keys.
    """
    live = FoldMap(memory_bytes_max)
    measured = 0

    def measure(read_bytes: int) -> None:
        nonlocal measured
        if read_bytes - measured > MEASURE_BYTES:
            measured = read_bytes
            live.measure()

    file = open_file(fs, path, live.entries, on_frame=measure, for_writing=for_writing)
    try:
        live.measure()
        if scope.topic and file.head.scope != scope:
            raise InvalidArgument(
                f"{path} belongs to {_text_of(file.head.scope)}, not to {_text_of(scope)}: use another file",
                field="path",
            )
    except BaseException:
        file.close(clean=False)
        raise
    return file, live


class FoldStorage:
    """See the module's docstring. `place` None = there is no file yet, and nothing is live."""

    def __init__(self, fs: Fs, path: Path, scope: FoldScope, *, memory_bytes_max: int) -> None:
        self.scope = scope
        self.live = FoldMap(memory_bytes_max)
        self.place: FoldPosition | None = None
        self.snapshot_ms = 0
        self._fs = fs
        self._path = path
        self._memory_bytes_max = memory_bytes_max
        self._file: FoldFile | None = None
        self._base: BaseWriter | None = None
        self._base_live = FoldMap(memory_bytes_max)
        self._base_ms = 0
        self._upkeep: Future[None] | None = None
        self._worker = WorkerThread("local-fold")

    @property
    def file_bytes(self) -> int:
        """Length of the file; 0 = there is none."""
        return self._file.size if self._file is not None else 0

    async def open(self, *, rebuild: bool) -> None:
        """Read the file, where there is one; `rebuild` = begin without it where it is damaged.

        A file that is not a local fold's is not begun without: the first snapshot would take its place.

        Raises:
            EddylineError: as `load_fold`. OSError: of the file system.
        """

        def work() -> tuple[FoldFile, FoldMap] | None:
            found = None
            try:
                found = load_fold(
                    self._fs, self._path, self.scope, memory_bytes_max=self._memory_bytes_max, for_writing=True
                )
            except FileNotFoundError:
                pass
            except NewerFormat:
                raise
            except DataCorrupt:
                if not (rebuild and is_fold_file(self._fs, self._path)):
                    raise
            # Not before: no other file belongs to a file that is refused. The next base starts from an empty file,
            # whether it exists or not.
            with suppress(OSError):
                self._fs.unlink(new_path(self._path))
            return found

        def then(found: tuple[FoldFile, FoldMap] | None) -> None:
            if found is not None:
                self._file, self.live = found
                self.scope = self._file.head.scope
                self.place = self._file.place
                self.snapshot_ms = self._file.head.snapshot_ms

        await self._worker.run(work, then)

    async def commit(self, changes: Sequence[Change], place: FoldPosition) -> None:
        """Take changes and the place behind them.

        Raises:
            MemoryFull: they are more than is allowed; nothing is taken. OSError: of the file system.
        """
        growth = self.live.growth(changes)

        def work() -> None:
            assert self._file is not None
            self._file.append(changes, place)

        def then(_: None) -> None:
            self.live.apply(changes, growth)
            self.place = place

        await self._worker.run(work, then)
        if self._file is not None and self._file.wants_compaction(self.live.live_bytes):
            await self._compact()

    async def delete(self) -> None:
        """The topic is gone: no key is live, until another base comes.

        Raises:
            OSError: of the file system.
        """
        if self.place is None:
            return
        gone = self.place._replace(deleted=True)

        def work() -> None:
            assert self._file is not None
            self._file.append((), gone)

        def then(_: None) -> None:
            self.live.clear()
            self.place = gone

        await self._worker.run(work, then)
        await self._compact()

    async def begin_base(self, now_ms: int) -> None:
        """A new base follows: what was begun before is forgotten, what is there stays until it is complete."""

        def work() -> None:
            if self._base is not None:
                self._base.abandon()
                self._base = None
            self._base = BaseWriter(self._fs, self._path, self.scope, snapshot_ms=now_ms)

        def then(_: None) -> None:
            self._base_live = FoldMap(self._memory_bytes_max)
            self._base_ms = now_ms

        await self._worker.run(work, then)

    async def add_base(self, changes: Sequence[Change]) -> None:
        """Add entries to the new base.

        Raises:
            MemoryFull: they are more than is allowed. OSError: of the file system.
        """
        growth = self._base_live.growth(changes)

        def work() -> None:
            assert self._base is not None
            for group in groups(changes):
                self._base.add(group)

        await self._worker.run(work, lambda _: self._base_live.apply(changes, growth))

    async def finish_base(self, place: FoldPosition, count: int) -> None:
        """The new base is complete, with `count` entries: it takes the place of all there was.

        Raises:
            DataCorrupt: it has another number. OSError: of the file system.
        """
        if count != len(self._base_live.entries):
            raise DataCorrupt(f"a snapshot of {count} entries contained {len(self._base_live.entries)}")

        def work() -> None:
            base = self._base
            assert base is not None
            self._replace(lambda: base.finish(place))
            self._base = None

        def then(_: None) -> None:
            self.live, self._base_live = self._base_live, FoldMap(self._memory_bytes_max)
            self.place, self.snapshot_ms = place, self._base_ms

        await self._worker.run(work, then)

    def mark(self, as_of_ms: int) -> None:
        """Note that the fold was level then; in the file in the background, unless it fails."""
        if self.place is None or self.place.deleted or as_of_ms <= self.place.as_of_ms:
            return
        self.place = self.place._replace(as_of_ms=as_of_ms)

        def work() -> None:
            if self._file is not None and not self._file.place.deleted:
                self._file.append((), self._file.place._replace(as_of_ms=as_of_ms))

        self._worker.submit(work)

    def upkeep(self) -> None:
        """Sync in the background; an error is raised by the next change."""

        def work() -> None:
            if self._file is not None:
                self._file.sync()

        if self._upkeep is None or self._upkeep.done():
            self._upkeep = self._worker.submit(work)

    async def close(self) -> None:
        """Put all of it on the disk and let go of it.

        Raises:
            OSError: of the file system. It is closed all the same.
        """

        def work() -> None:
            try:
                if self._base is not None:
                    self._base.abandon()
            finally:
                self._base = None
                if self._file is not None:
                    file, self._file = self._file, None
                    file.close()

        try:
            await self._worker.run(work)
        finally:
            self._worker.close()

    async def _compact(self) -> None:
        place, snapshot_ms = self.place, self.snapshot_ms
        assert place is not None

        def work() -> None:
            self._replace(
                lambda: write_base(
                    self._fs, self._path, self.scope, place, entries=self.live.entries.items(), snapshot_ms=snapshot_ms
                )
            )

        await self._worker.run(work)

    def _replace(self, make: Callable[[], FoldFile]) -> None:
        old = self._file
        try:
            self._file = make()
        except BaseException:
            if old is not None:
                old.give_up()  # the new one may have its name already
            raise
        if old is not None:
            old.close(clean=False)


def _text_of(scope: FoldScope) -> str:
    prefixes = ", ".join(repr(prefix) for prefix in scope.key_prefixes)
    return f"topic {scope.topic!r}" + (f" with keys from {prefixes}" if prefixes else "")
