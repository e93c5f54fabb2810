"""A simulated disk that crashes, deterministic by its seed.

The machine stops at call `crash_at` (counted from 1): that call takes effect wholly, in part or not at all, never returns,
and neither does any later one: all raise `Crashed`. `reboot` gives the disk as the next boot finds it, as often as asked:

kill    the process died, the machine did not: every byte and name is there, and the boot id is the same. What no fsync
        covered is with the kernel still, and a power crash after it may take it.
power   what no fsync covered is lost, kept, torn at 512-byte sectors or kept out of order, and the boot id is another. A
        shorter length needs fsync (fdatasync alone may lose it), a name needs the fsync of its directory.

Threading: one thread.
"""

from __future__ import annotations

import errno
import os
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from eddyline.store.storage.fs import Locked
from eddyline.store.workers import SimulatedStop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.store.storage.fs import Buffer, File, Lock

CrashKind: TypeAlias = Literal["kill", "power"]

SECTOR_BYTES: Final = 512


class Crashed(SimulatedStop):
    """The simulated machine has stopped."""


class SimFs:
    """A disk in memory; see the module's docstring."""

    def __init__(self, seed: int = 0, *, crash_at: int | None = None) -> None:
        self.seed = seed
        self.crash_at = crash_at
        self.calls = 0
        self.crashed = False
        self.boots = 1
        self._random = Random(seed)
        self._root = _Directory()
        self._locks: dict[Path, bytes] = {}

    @property
    def boot_id(self) -> str:
        """Another one after every power crash."""
        return f"boot-{self.boots}"

    def reboot(self, crash: CrashKind, *, seed: int | None = None, crash_at: int | None = None) -> SimFs:
        """The disk after this crash. This one stays as it is, so that many outcomes can be looked at."""
        seed = self.seed if seed is None else seed
        rebooted = SimFs(seed, crash_at=crash_at)
        rebooted.boots = self.boots + (crash == "power")
        power = Random(f"{seed}/{self.calls}") if crash == "power" else None
        rebooted._root = self._root.after(power) if power is not None else deepcopy(self._root)
        return rebooted

    def open(self, path: Path, *, create: bool = False) -> File:
        stops = self.step()
        parent = self._directory(path.parent)
        node = parent.names.get(path.name)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        if node is None:
            if not create:
                raise _error(errno.ENOENT, path)
            node = _Inode()
            if self.takes_effect(stops):
                parent.change({path.name: node})
        self.stop(stops)
        return _SimFile(self, node)

    def listdir(self, path: Path) -> list[str]:
        self.stop(self.step())
        return sorted(self._directory(path).names)

    def mkdir(self, path: Path) -> None:
        stops = self.step()
        parent = self._directory(path.parent)
        node = parent.names.get(path.name)
        if isinstance(node, _Inode):
            raise _error(errno.EEXIST, path)
        if node is None and self.takes_effect(stops):
            parent.change({path.name: _Directory()})
        self.stop(stops)

    def exists(self, path: Path) -> bool:
        self.stop(self.step())
        try:
            return not path.name or path.name in self._directory(path.parent).names
        except (FileNotFoundError, NotADirectoryError):
            return False

    def rename(self, old: Path, new: Path) -> None:
        stops = self.step()
        assert old.parent == new.parent
        parent = self._directory(old.parent)
        node = parent.names.get(old.name)
        if node is None:
            raise _error(errno.ENOENT, old)
        if self.takes_effect(stops):
            parent.change({old.name: None, new.name: node})
        self.stop(stops)

    def unlink(self, path: Path) -> None:
        stops = self.step()
        parent = self._directory(path.parent)
        if not isinstance(parent.names.get(path.name), _Inode):
            raise _error(errno.ENOENT, path)
        if self.takes_effect(stops):
            parent.change({path.name: None})
        self.stop(stops)

    def fsync_dir(self, path: Path) -> None:
        stops = self.step()
        directory = self._directory(path)
        if self.takes_effect(stops):
            directory.sync()
        self.stop(stops)

    def lock(self, path: Path, holder: bytes) -> Lock:
        self.stop(self.step())
        if path in self._locks:
            raise Locked(path, self._locks[path].decode())
        parent = self._directory(path.parent)
        if path.name not in parent.names:
            parent.change({path.name: _Inode()})
        self._locks[path] = holder
        return _SimLock(self._locks, path)

    # the machine --------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Count a call; True = the machine stops in it."""
        if self.crashed:
            raise Crashed
        self.calls += 1
        return self.calls == self.crash_at

    def takes_effect(self, stops: bool) -> bool:
        """Whether a call that may be the last one still does its work."""
        return not stops or self._random.getrandbits(1) == 1

    def part_of(self, size: int) -> int:
        """How much of `size` bytes the last call still wrote."""
        return self._random.choice((0, size, self._random.randrange(size + 1)))

    def stop(self, stops: bool) -> None:
        """Stop the machine, if this is the call."""
        if stops:
            self.crashed = True
            raise Crashed

    def keeps_cut(self) -> bool:
        """Whether an fdatasync happens to make a shorter length durable."""
        return self._random.getrandbits(1) == 1

    def _directory(self, path: Path) -> _Directory:
        node: _Directory | _Inode | None = self._root
        for part in path.parts[1:]:
            if not isinstance(node, _Directory):
                raise _error(errno.ENOTDIR, path)
            node = node.names.get(part)
            if node is None:
                raise _error(errno.ENOENT, path)
        if not isinstance(node, _Directory):
            raise _error(errno.ENOTDIR, path)
        return node


class _SimFile:
    def __init__(self, fs: SimFs, inode: _Inode) -> None:
        self._fs = fs
        self._inode = inode

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        stops = self._fs.step()
        data = b"".join(buffers)
        if stops:
            data = data[: self._fs.part_of(len(data))]
        if data:
            self._inode.write(offset, data)
        self._fs.stop(stops)
        return len(data)

    def pread(self, size: int, offset: int) -> bytes:
        self._fs.stop(self._fs.step())
        return bytes(self._inode.data[offset : offset + size])

    def size(self) -> int:
        self._fs.stop(self._fs.step())
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        stops = self._fs.step()
        if self._fs.takes_effect(stops):
            self._inode.truncate(size)
        self._fs.stop(stops)

    def fdatasync(self) -> None:
        stops = self._fs.step()
        if self._fs.takes_effect(stops):
            self._inode.sync(cut=self._fs.keeps_cut())
        self._fs.stop(stops)

    def fsync(self) -> None:
        stops = self._fs.step()
        if self._fs.takes_effect(stops):
            self._inode.sync(cut=True)
        self._fs.stop(stops)

    def close(self) -> None:
        """Not a call that counts: nothing changes by it."""


class _SimLock:
    def __init__(self, locks: dict[Path, bytes], path: Path) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.pop(self._path, None)


class _Write(NamedTuple):
    offset: int
    data: bytes


class _Truncate(NamedTuple):
    size: int


class _Inode:
    """A file: what is durable, what the kernel holds, and the changes between the two in their order."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self._durable = data
        self._pending: list[_Write | _Truncate] = []

    def write(self, offset: int, data: bytes) -> None:
        _write(self.data, offset, data)
        self._pending.append(_Write(offset, data))

    def truncate(self, size: int) -> None:
        _truncate(self.data, size)
        self._pending.append(_Truncate(size))

    def sync(self, *, cut: bool) -> None:
        """Make it durable; without `cut` a shorter length is not."""
        data = bytes(self.data)
        if cut or len(data) >= len(self._durable):
            self._durable, self._pending = data, []
        else:
            self._durable = data + self._durable[len(data) :]
            self._pending = [_Truncate(len(data))]

    def after(self, random: Random) -> _Inode:
        """The file after the power went."""
        survived, style = bytearray(self._durable), random.choice(("none", "all", "prefix", "any"))
        kept_first = random.randrange(len(self._pending) + 1)
        for position, change in enumerate(self._pending):
            chance = {"none": 0.0, "all": 1.0, "any": 0.5}.get(style)
            if chance is None:
                chance = 1.0 if position < kept_first else 0.5 if position == kept_first else 0.0
            if isinstance(change, _Truncate):
                if random.uniform(0, 1) < chance:
                    _truncate(survived, change.size)
                continue
            for start, end in _sectors(change.offset, len(change.data)):
                if random.uniform(0, 1) < chance:
                    _write(survived, start, change.data[start - change.offset : end - change.offset])
        return _Inode(bytes(survived))


class _Directory:
    """Names, those that are durable, and the changes between the two in their order."""

    def __init__(self) -> None:
        self.names: dict[str, _Directory | _Inode] = {}
        self._durable: dict[str, _Directory | _Inode] = {}
        self._pending: list[dict[str, _Directory | _Inode | None]] = []

    def change(self, changes: dict[str, _Directory | _Inode | None]) -> None:
        """Names that change in one step, to a node or to nothing."""
        _rename(self.names, changes)
        self._pending.append(changes)

    def sync(self) -> None:
        self._durable, self._pending = dict(self.names), []

    def after(self, random: Random) -> _Directory:
        """The directory after the power went: any steps, but each only with those before it on its names or nodes."""
        names, lost_names, lost_nodes = dict(self._durable), set[str](), set[int]()
        chance = random.choice((0.0, 0.5, 1.0))
        for changes in self._pending:
            nodes = {id(node) for node in changes.values() if node is not None}
            depends = lost_names & changes.keys() or lost_nodes & nodes
            if not depends and random.uniform(0, 1) < chance:
                _rename(names, changes)
            else:
                lost_names |= changes.keys()
                lost_nodes |= nodes
        survived = _Directory()
        survived.names = {name: node.after(random) for name, node in sorted(names.items())}
        survived._durable = dict(survived.names)
        return survived


def _rename(names: dict[str, _Directory | _Inode], changes: dict[str, _Directory | _Inode | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _write(data: bytearray, offset: int, written: bytes) -> None:
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(written)] = written


def _truncate(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def _sectors(offset: int, size: int) -> list[tuple[int, int]]:
    end, start, sectors = offset + size, offset, list[tuple[int, int]]()
    while start < end:
        stop = min(end, start - start % SECTOR_BYTES + SECTOR_BYTES)
        sectors.append((start, stop))
        start = stop
    return sectors


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))
