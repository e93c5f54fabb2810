"""The file of a local fold: made whole or not at all, appended to, read back after any crash.

I1: a file has its name only when its base, the fold at one place, is on the disk: it is written to a second file
(`….new`), synced and renamed over it. Snapshots and compactions both make one.
I2: frames are appended in order, each at once: what is read back is the base and some prefix of them, so that the fold
is always as it was at one place.
I3: the file is at most its base, twice what is live and `COMPACT_BYTES_MIN`, as long as the appender compacts when
`wants_compaction` says so.
Failure: an error of the disk is passed on; the file takes nothing more then, and is to be opened again.
Threading: one thread at a time. Blocking.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from eddyline.client.local_fold.frame import (
    FILE_HEAD,
    FRAME_HEAD,
    FRAME_MARK,
    ITEM,
    MAGIC,
    SCOPE_BYTES_MAX,
    FileHead,
    FoldPosition,
    apply_body,
    body_of,
    bytes_wanted,
    corrupt,
    decode_file_head,
    encode_file_head,
    encode_frame,
    frame_end,
)
from eddyline.core.runtime.fs import write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from eddyline.client.local_fold.frame import Change, FoldScope
    from eddyline.core.runtime.fs import File, Fs

FRAME_BYTES: Final = 1 << 20
"""Bound at which a group of changes is cut into frames: the loss of a torn frame, and the memory of one read."""
READ_BYTES: Final = 4 << 20
COMPACT_BYTES_MIN: Final = 1 << 20
"""Default in Redis: 64 MiB; with no minimum a small file would be rewritten at every second change. 1 MiB is written in
a millisecond."""
NEW_SUFFIX: Final = ".new"


class FoldFile:
    """An open file with its base. Made by `open_file` and `BaseWriter.finish`; its holder closes it."""

    def __init__(
        self, file: File, path: Path, head: FileHead, *, place: FoldPosition, size: int, synced_end: int
    ) -> None:
        self.path = path
        self.head = head
        self.place = place
        self._file = file
        self._size = size
        self._synced_end = synced_end
        self._failed = False

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return self._size

    @property
    def is_synced(self) -> bool:
        """True = all of it is on the disk."""
        return self._synced_end == self._size

    def wants_compaction(self, live_bytes: int) -> bool:
        """Whether more of it is garbage than live, `live_bytes` being what the live keys' items take."""
        return self._size - self.head.size - live_bytes > max(live_bytes, COMPACT_BYTES_MIN)

    def append(self, changes: Sequence[Change], place: FoldPosition) -> None:
        """Append changes and the place behind them, as one frame; the kernel has it when it returns.

        Raises:
            OSError: of the file system. Nothing more is taken then.
        """
        self._check_whole()
        frame = encode_frame(changes, place, offset=self._size, synced_end=self._synced_end)
        self._failed = True
        write_all(self._file, [frame], self._size)
        self._failed = False
        self._size += len(frame)
        self.place = place

    def sync(self) -> None:
        """Put all of it on the disk.

        Raises:
            OSError: of the file system. Nothing more is taken then: a second try might succeed without having written.
        """
        self._check_whole()
        if not self.is_synced:
            self._failed = True
            self._file.fdatasync()
            self._failed = False
            self._synced_end = self._size

    def give_up(self) -> None:
        """Take nothing more: another file may have its name."""
        self._failed = True

    def close(self, *, clean: bool = True) -> None:
        """Let go of it; `clean` = sync it first, and leave a frame that says so, where it has not failed.

        Raises:
            OSError: of the file system. It is closed all the same.
        """
        try:
            if clean and not self._failed and not self.is_synced:
                self.sync()
                self.append((), self.place)
                self.sync()
        finally:
            self._file.close()

    def _check_whole(self) -> None:
        if self._failed:
            raise OSError(errno.EIO, "an earlier write failed: open the file again", str(self.path))


class BaseWriter:
    """A new file under construction, which will replace the present one."""

    def __init__(self, fs: Fs, path: Path, scope: FoldScope, *, snapshot_ms: int) -> None:
        """Begin. It replaces the remains of an earlier one.

        Raises:
            OSError: of the file system.
        """
        self._fs = fs
        self._path = path
        self._scope = scope
        self._snapshot_ms = snapshot_ms
        self._file = fs.open(new_path(path), create=True)
        self._head_bytes = len(encode_file_head(scope, base_end=0, snapshot_ms=0))
        self._size = self._head_bytes
        try:
            self._file.truncate(0)
        except BaseException:
            self._file.close()
            raise

    def add(self, changes: Sequence[Change]) -> None:
        """Add entries of the base.

        Raises:
            OSError: of the file system.
        """
        frame = encode_frame(changes, FoldPosition(0, 0), offset=self._size, synced_end=0)
        write_all(self._file, [frame], self._size)
        self._size += len(frame)

    def finish(self, place: FoldPosition) -> FoldFile:
        """Make it the file: on the disk first, then by its name.

        Raises:
            OSError: of the file system; the old file is there, or the new one.
        """
        frame = encode_frame((), place, offset=self._size, synced_end=0)
        end = self._size + len(frame)
        head = encode_file_head(self._scope, base_end=end, snapshot_ms=self._snapshot_ms)
        assert len(head) == self._head_bytes
        write_all(self._file, [frame], self._size)
        write_all(self._file, [head], 0)
        self._file.fsync()
        self._fs.rename(new_path(self._path), self._path)
        self._fs.fsync_dir(self._path.parent)
        found = FileHead(self._scope, self._head_bytes, end, self._snapshot_ms)
        return FoldFile(self._file, self._path, found, place=place, size=end, synced_end=end)

    def abandon(self) -> None:
        """Let go of it, and of its name. Not after `finish`."""
        self._file.close()
        # The next one starts from an empty file whether it exists or not, and so does the next start.
        with suppress(OSError):
            self._fs.unlink(new_path(self._path))


def new_path(path: Path) -> Path:
    """The path of a file before it has its name."""
    return path.with_name(path.name + NEW_SUFFIX)


def write_base(
    fs: Fs, path: Path, scope: FoldScope, place: FoldPosition, *, entries: Iterable[Change], snapshot_ms: int
) -> FoldFile:
    """Make a file of a whole fold, in the place of the one that is there.

    Raises:
        OSError: of the file system; the old file is there, or the new one.
    """
    writer = BaseWriter(fs, path, scope, snapshot_ms=snapshot_ms)
    try:
        for group in groups(entries):
            writer.add(group)
        return writer.finish(place)
    except BaseException:
        writer.abandon()
        raise


def groups(entries: Iterable[Change], bytes_max: int = FRAME_BYTES) -> Iterable[list[Change]]:
    """Changes in groups of about `bytes_max` bytes."""
    group: list[Change] = []
    left = bytes_max
    for change in entries:
        group.append(change)
        left -= ITEM.size + len(change[0]) + len(change[1] or b"")
        if left <= 0:
            yield group
            group, left = [], bytes_max
    if group:
        yield group


def is_fold_file(fs: Fs, path: Path) -> bool:
    """Whether it is a local fold's file by its first bytes, whatever the others are. An empty one is taken for one.

    Raises:
        OSError: of the file system; FileNotFoundError: there is none.
    """
    file = fs.open(path)
    try:
        return file.pread(len(MAGIC), 0) in (MAGIC, b"")
    finally:
        file.close()


def open_file(
    fs: Fs,
    path: Path,
    entries: dict[bytes, bytes],
    *,
    on_frame: Callable[[int], None] | None = None,
    for_writing: bool = True,
) -> FoldFile:
    """Read a file into `entries`, which are empty; what a crash tore off at its end is cut, `for_writing` on the disk
    too.

    `on_frame` hears the bytes read so far, after each frame.

    Raises:
        DataCorrupt: bytes that were on the disk are wrong (metadata: file, offset). NewerFormat: a later version's file.
            OSError: of the file system; FileNotFoundError: there is none.
    """
    file = fs.open(path)
    try:
        size = file.size()
        head = decode_file_head(file.pread(FILE_HEAD.size + SCOPE_BYTES_MAX + 8, 0), path)
        place, end = _read_frames(file, head, path, entries, on_frame)
        if end < head.base_end:
            raise corrupt(path, end, "the base is damaged")
        if end < size:
            _check_torn(file, path, end, size)
            if for_writing:
                file.truncate(end)
        if for_writing:
            # What is there was written by a process that may have died before it synced.
            file.fsync()
    except BaseException:
        file.close()
        raise
    return FoldFile(file, path, head, place=place, size=end, synced_end=end if for_writing else 0)


def _read_frames(
    file: File, head: FileHead, path: Path, entries: dict[bytes, bytes], on_frame: Callable[[int], None] | None
) -> tuple[FoldPosition, int]:
    """Apply frames until the first that is not valid: the place behind them, and their end."""
    size = file.size()
    place, offset, window, at = FoldPosition(0, 0), head.size, b"", 0
    while offset < size:
        end = frame_end(window, at, offset)
        if not end:
            window, at = _window(file, offset), 0
            end = frame_end(window, 0, offset)
            if not end:
                break
        body = body_of(window, at, end)
        if not apply_body(window, body, entries):
            raise corrupt(path, offset, "a frame is longer than its items")
        place = body.place
        offset += end - at
        at = end
        if on_frame is not None:
            on_frame(offset)
    return place, offset


def _check_torn(file: File, path: Path, end: int, size: int) -> None:
    """Whether what is wrong at `end` may be what a crash left.

    Raises:
        DataCorrupt: a frame behind it says that it was on the disk.
    """
    offset = end + 1
    while offset < size:
        window = file.pread(READ_BYTES, offset)
        at = window.find(FRAME_MARK)
        while at >= 0:
            here = _window(file, offset + at, FRAME_HEAD.size)
            found = frame_end(here, 0, offset + at)
            if found and body_of(here, 0, found).synced_end > end:
                raise corrupt(path, end, "a frame that was on the disk is damaged")
            at = window.find(FRAME_MARK, at + 1)
        if len(window) < READ_BYTES:
            return
        offset += READ_BYTES - len(FRAME_MARK) + 1


def _window(file: File, offset: int, size: int = READ_BYTES) -> bytes:
    """Bytes from `offset`: `size` of them, or as many as the frame there takes."""
    window = file.pread(size, offset)
    wanted = bytes_wanted(window)
    return window if wanted <= len(window) else file.pread(wanted, offset)
