"""A copy of a KV topic at an edge node: kept in step while there is a cluster, readable without one, across any crash.

    async with open_fold(Path("routes.fold"), "routes") as fold, asyncio.TaskGroup() as group:
        group.create_task(fold.follow(client))
        ...
        fold.get(b"co.uk"), fold.range(key_prefix=b"co."), fold.state()

All of it is in memory and in one file, which `eddyline.client.local_fold.frame` describes. One process at a time may
have it open (`….lock`); any number may read it meanwhile by `read_fold`. A kill -9 loses nothing; what a power failure
takes, the last second, comes again when the fold is followed. Promises: what is read is the topic's fold (under the
prefixes) at exactly the place that `state` says. Not: that it is the newest; `as_of_ms` says when it was. A place is of
delivery's knowledge: a store that is away from it is not seen here.
Threading: one event loop; the file has a thread of its own.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eddyline.client.local_fold.file import is_fold_file
from eddyline.client.local_fold.follow import FOLLOW, Follower, FollowOptions
from eddyline.client.local_fold.frame import FoldPosition, FoldScope
from eddyline.client.local_fold.storage import FoldStorage, load_fold
from eddyline.core.errors import InvalidArgument
from eddyline.core.model.topic import check_name
from eddyline.core.records.fold_entry import decode_entry
from eddyline.core.records.record import effective_version
from eddyline.core.runtime.clock import SystemClock, SystemHost
from eddyline.core.runtime.fs import RealFs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from eddyline.client.local_fold.memory import FoldMap
    from eddyline.client.watch.watch_source import WatchSource
    from eddyline.core.records.record import Record
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.runtime.fs import Fs

MEMORY_BYTES_MAX: Final = 1 << 30
"""Default in Redis: unbounded; a topic that grows would exhaust the edge node's memory. 1 GiB is 3
million keys with values of 100 bytes. A snapshot that replaces the fold takes as much again until it is complete."""
LOCK_SUFFIX: Final = ".lock"


@dataclass(frozen=True, slots=True)
class LocalFoldState:
    """How a local fold stands.

    `epoch`, `seq`: the place that it is of, 0 = it has none yet. `as_of_ms`: when it was last known to be level with
    the topic, wall clock, 0 = never. `level`: it is connected and has all that delivery last knew of. `deleted`: the
    topic was deleted, and nothing is live. `memory_bytes` is what the bound counts.
    """

    topic: str
    key_prefixes: tuple[bytes, ...]
    epoch: int
    seq: int
    entry_count: int
    as_of_ms: int
    level: bool
    deleted: bool
    memory_bytes: int
    file_bytes: int


class LocalFold:
    """Made by `open_fold` and `read_fold`."""

    def __init__(
        self, live: FoldMap | None, state: LocalFoldState | None, keeper: FoldStorage | None, clock: Clock
    ) -> None:
        self._read_live = live
        self._read_state = state
        self._keeper = keeper
        self._clock = clock
        self._follower: Follower | None = None

    def get(self, key: bytes) -> Record | None:
        """The record that wrote the key's live value; None = not live.

        Raises:
            DataCorrupt: its bytes are no entry.
        """
        entry = self._live.entries.get(key)
        return None if entry is None else _record_of(key, entry)

    def range(self, *, key_prefix: bytes = b"", after_key: bytes = b"", limit: int = 0) -> Iterator[Record]:
        """Live entries in byte order of their keys, all at the point of the call; `limit` 0 = all.

        The first call sorts the keys (1 s a million), later ones only what is new.

        Raises:
            DataCorrupt: bytes that are no entry.
        """
        entries = self._live.entries
        found = [(key, entries[key]) for key in self._live.range(key_prefix, after_key, limit)]
        return (_record_of(key, entry) for key, entry in found)

    def state(self) -> LocalFoldState:
        """How it stands now."""
        keeper = self._keeper
        if keeper is None:
            assert self._read_state is not None
            return self._read_state
        place = keeper.place or FoldPosition(0, 0)
        follower = self._follower
        as_of_ms = max(place.as_of_ms, follower.as_of_ms) if follower is not None else place.as_of_ms
        level = follower is not None and follower.level
        known = place._replace(as_of_ms=as_of_ms)
        return _state_of(keeper.scope, known, keeper.live, keeper.file_bytes, level=level)

    async def follow(
        self, client: WatchSource, options: FollowOptions = FOLLOW, *, random_source: random.Random | None = None
    ) -> None:
        """Keep it in step with its topic, until cancelled: then it is whole, and may be followed again.

        Raises:
            EddylineError: TopicNotFound (of a topic that it never had), NotKv, FoldLost, DataCorrupt, MemoryFull.
            InvalidArgument: it is open for reading, or followed already. OSError: of the file system.
        """
        if self._keeper is None or self._follower is not None:
            raise InvalidArgument(
                "a local fold can be followed once, and only if it was opened for writing", field="follow"
            )
        self._follower = Follower(
            self._keeper,
            client,
            options,
            clock=self._clock,
            random_source=random_source if random_source is not None else random.Random(),
        )
        try:
            await self._follower.run()
        finally:
            self._follower = None

    @property
    def _live(self) -> FoldMap:
        if self._keeper is not None:
            return self._keeper.live
        assert self._read_live is not None
        return self._read_live


@asynccontextmanager
async def open_fold(
    path: Path,
    topic: str,
    *,
    key_prefixes: Sequence[bytes] = (),
    memory_bytes_max: int = MEMORY_BYTES_MAX,
    rebuild: bool = False,
    clock: Clock | None = None,
    fs: Fs | None = None,
) -> AsyncIterator[LocalFold]:
    """Open the local fold of a topic, or make one, at `path`; of the keys with one of the prefixes (none = all).

    It holds nothing before its first snapshot. A symbolic link is followed: the file lies where it leads. `rebuild` =
    begin without a file that is damaged, rather than refuse it; one that is not a local fold's is refused all the same.

    Raises:
        InvalidName, InvalidArgument: the file is of another topic or of other keys, has a second name, or is a device.
        Locked: another process has it.
        DataCorrupt: bytes that were on the disk are wrong, or it is not a local fold's file (metadata: file, offset).
        NewerFormat: a later version's file. MemoryFull: it is larger than is allowed. OSError: of the file system.
    """
    check_name(topic, "topic")
    files = fs if fs is not None else RealFs()
    path = _only_name(path)
    lock = files.lock(path.with_name(path.name + LOCK_SUFFIX), f"process {SystemHost().pid()}\n".encode())
    try:
        keeper = FoldStorage(files, path, FoldScope(topic, tuple(key_prefixes)), memory_bytes_max=memory_bytes_max)
        try:
            await keeper.open(rebuild=rebuild)
            yield LocalFold(None, None, keeper, clock if clock is not None else SystemClock())
        finally:
            await keeper.close()
    finally:
        lock.release()


def _only_name(path: Path) -> Path:
    """Return the file's real path: one lock and one rename for all links to it.

    Raises:
        InvalidArgument: it has a second name, a hard link, under which somebody else could write it; or it is a device
            or the like, which a rename would replace.
    """
    real = path.resolve()
    if real.exists() and not real.is_file() and not real.is_dir():
        raise InvalidArgument(f"{path} is not a regular file: give another file", field="path")
    if real.is_file() and real.stat().st_nlink > 1:
        raise InvalidArgument(f"{path} has a second name (a hard link); a local fold has one", field="path")
    return real


def may_rebuild(path: Path, *, fs: Fs | None = None) -> bool:
    """True = `open_fold` with `rebuild` may replace this file if it is damaged: a fold's, or an empty one. Blocking.

    Raises:
        OSError: of the file system.
    """
    return path.is_file() and is_fold_file(fs if fs is not None else RealFs(), path)


def read_fold(path: Path, *, memory_bytes_max: int = MEMORY_BYTES_MAX, fs: Fs | None = None) -> LocalFold:
    """Read a local fold as it is on the disk now, also while another process writes it. Blocking; nothing is changed or
    kept open.

    Raises:
        FileNotFoundError: there is none, or it has not had its first snapshot yet. DataCorrupt, NewerFormat, MemoryFull:
            as `open_fold`. OSError: of the file system.
    """
    files = fs if fs is not None else RealFs()
    file, live = load_fold(files, path, FoldScope(""), memory_bytes_max=memory_bytes_max, for_writing=False)
    file.close(clean=False)
    return LocalFold(live, _state_of(file.head.scope, file.place, live, file.size), None, SystemClock())


def _state_of(
    scope: FoldScope, place: FoldPosition, live: FoldMap, file_bytes: int, *, level: bool = False
) -> LocalFoldState:
    return LocalFoldState(
        topic=scope.topic,
        key_prefixes=scope.key_prefixes,
        epoch=place.epoch,
        seq=place.seq,
        entry_count=len(live.entries),
        as_of_ms=place.as_of_ms,
        level=level,
        deleted=place.deleted,
        memory_bytes=live.memory_bytes,
        file_bytes=file_bytes,
    )


def _record_of(key: bytes, entry: bytes) -> Record:
    record = decode_entry(key, entry)
    return record._replace(version=effective_version(record.version, record.seq))
