"""A simulated disk that crashes, deterministic by its seed.

The machine stops at call `crash_at` (counted from 1): that call takes effect wholly, in part or not at all, never returns,
and neither does any later one: all raise `Crashed`. `reboot` gives the disk as the next boot finds it, as often as asked:

kill    the process died, the machine did not: every byte and name is there, and the boot id is the same. What no fsync
        covered is with the kernel still, and a power crash after it may take it.
power   what no fsync covered is lost, kept, torn at 512-byte sectors or kept out of order, and the boot id is another. A
        shorter length needs fsync (fdatasync alone may lose it), a name needs the fsync of its directory.
detach  the volume was taken from a running machine: bytes and names as after power, the boot id the same.

Threading: one thread.
"""

from __future__ import annotations

import errno
import os
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from eddyline.core.runtime.fs import Locked
from tests.support.sim.file_tree import Directory, Inode, Survival
from tests.support.sim.worker import SimulatedStop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.runtime.fs import Buffer, File, Lock
    from eddyline.store.storage.wal.written_mark import WrittenEnd

CrashKind: TypeAlias = Literal["kill", "power", "detach"]

FREE_BYTES: Final = 1 << 50
"""Room on a disk whose test does not speak of it."""


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
        self.free = FREE_BYTES
        """The value of `free_bytes`; a test sets it. Nothing is refused by it: errors are `FaultyFs`'s."""
        self.engines: dict[Path, dict[bytes, bytes]] = {}
        """Data of engines that do not use our files, such as a catalog: synced at every write, so no crash removes any."""
        self.written_mark: tuple[str, list[WrittenEnd]] | None = None
        """The run and the ends of a store's written mark: in the machine's memory, not on this disk."""
        self._random = Random(seed)
        self._root = Directory()
        self._locks: dict[Path, bytes] = {}

    @property
    def boot_id(self) -> str:
        """Another one after every power crash."""
        return f"boot-{self.boots}"

    def reboot(self, crash: CrashKind, *, seed: int | None = None, crash_at: int | None = None) -> SimFs:
        """The disk after this crash. This one stays unchanged, so that a test can try many outcomes."""
        seed = self.seed if seed is None else seed
        rebooted = SimFs(seed, crash_at=crash_at)
        rebooted.boots = self.boots + (crash == "power")
        rebooted.free = self.free
        rebooted.engines = {path: dict(content) for path, content in self.engines.items()}
        if self.written_mark is not None:
            rebooted.written_mark = (self.written_mark[0], list(self.written_mark[1]))
        power = Survival(Random(f"{seed}/{self.calls}")) if crash != "kill" else None
        rebooted._root = self._root.after(power) if power is not None else deepcopy(self._root)
        return rebooted

    def open(self, path: Path, *, create: bool = False) -> File:
        stops = self.step()
        parent = self._directory(path.parent)
        node = parent.names.get(path.name)
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, path)
        if node is None:
            if not create:
                raise _error(errno.ENOENT, path)
            node = Inode()
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
        if isinstance(node, Inode):
            raise _error(errno.EEXIST, path)
        if node is None and self.takes_effect(stops):
            parent.change({path.name: Directory()})
        self.stop(stops)

    def exists(self, path: Path) -> bool:
        self.stop(self.step())
        try:
            return not path.name or path.name in self._directory(path.parent).names
        except (FileNotFoundError, NotADirectoryError):
            return False

    def rename(self, old: Path, new: Path) -> None:
        stops = self.step()
        parent, to = self._directory(old.parent), self._directory(new.parent)
        node, over = parent.names.get(old.name), to.names.get(new.name)
        if node is None:
            raise _error(errno.ENOENT, old)
        if old in new.parents:
            raise _error(errno.EINVAL, new)
        if isinstance(over, Directory) and over is not node:
            code = errno.EISDIR if isinstance(node, Inode) else errno.ENOTEMPTY if over.names else 0
            if code:
                raise _error(code, new)
        elif isinstance(over, Inode) and isinstance(node, Directory):
            raise _error(errno.ENOTDIR, new)
        if self.takes_effect(stops) and over is not node:
            if parent is to:
                parent.change({old.name: None, new.name: node})
            else:
                parent.move(old.name, to, new.name)
        self.stop(stops)

    def unlink(self, path: Path) -> None:
        stops = self.step()
        parent = self._directory(path.parent)
        if not isinstance(parent.names.get(path.name), Inode):
            raise _error(errno.ENOENT, path)
        if self.takes_effect(stops):
            parent.change({path.name: None})
        self.stop(stops)

    def rmdir(self, path: Path) -> None:
        stops = self.step()
        parent = self._directory(path.parent)
        if self._directory(path).names:
            raise _error(errno.ENOTEMPTY, path)
        if self.takes_effect(stops):
            parent.change({path.name: None})
        self.stop(stops)

    def free_bytes(self, path: Path) -> int:
        self.stop(self.step())
        self._directory(path)
        return self.free

    def disk_bytes(self, path: Path) -> int:
        self.stop(self.step())
        return len(self.content(path))

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
            parent.change({path.name: Inode()})
        self._locks[path] = holder
        return _SimLock(self._locks, path)

    def content(self, path: Path) -> bytearray:
        """The bytes of a file as they lie there, to be damaged: not a call of the machine.

        Raises:
            OSError: there is no such file.
        """
        node = self._directory(path.parent).names.get(path.name)
        if not isinstance(node, Inode):
            raise _error(errno.ENOENT, path)
        return node.data

    def holding(self, value: bytes) -> list[Path]:
        """Files with these bytes in them: not a call of the machine."""
        found, left = list[Path](), [(Path("/"), self._root)]
        while left:
            path, directory = left.pop()
            for name, node in directory.names.items():
                if isinstance(node, Directory):
                    left.append((path / name, node))
                elif value in node.data:
                    found.append(path / name)
        return found

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

    def _directory(self, path: Path) -> Directory:
        node: Directory | Inode | None = self._root
        for part in path.parts[1:]:
            if not isinstance(node, Directory):
                raise _error(errno.ENOTDIR, path)
            node = node.names.get(part)
            if node is None:
                raise _error(errno.ENOENT, path)
        if not isinstance(node, Directory):
            raise _error(errno.ENOTDIR, path)
        return node


class _SimFile:
    def __init__(self, fs: SimFs, inode: Inode) -> None:
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

    def pwritev_durable(self, buffers: Sequence[Buffer], offset: int) -> int:
        stops = self._fs.step()
        data = b"".join(buffers)
        if stops:
            data = data[: self._fs.part_of(len(data))]
            self._inode.write(offset, data)
        elif data:
            self._inode.write_durable(offset, data)
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


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))
