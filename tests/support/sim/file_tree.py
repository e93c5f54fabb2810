"""The content of a simulated disk: files and directories, their durable parts, and the remains after a power crash.

Bytes are durable after a sync of their file, a name (made, moved, removed) after the sync of its directory. Any other change
survives or not by the random source of one `Survival`, which is made for one crash.
A move between two directories is one step while the machine lives. After a power crash the name may be at its old place,
at its new one or, of a file, at both; but lost from both only where the old directory was synced and the new one was not.

Threading: one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from random import Random

SECTOR_BYTES: Final = 512


class _Write(NamedTuple):
    offset: int
    data: bytes


class _Truncate(NamedTuple):
    size: int


class Inode:
    """A file: what is durable, what the kernel holds, and the changes between the two in their order."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self._durable = data
        self._pending: list[_Write | _Truncate] = []

    def write(self, offset: int, data: bytes) -> None:
        _write(self.data, offset, data)
        self._pending.append(_Write(offset, data))

    def write_durable(self, offset: int, data: bytes) -> None:
        """Just these bytes are durable: what was written before is as it was."""
        assert not any(
            isinstance(change, _Truncate)
            or (change.offset < offset + len(data) and offset < change.offset + len(change.data))
            for change in self._pending
        ), "over bytes that are not durable: not modelled"
        durable = bytearray(self._durable)
        _write(self.data, offset, data)
        _write(durable, offset, data)
        self._durable = bytes(durable)

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

    def after(self, survival: Survival) -> Inode:
        """The file after the power went; one file under two names stays one."""
        known = survival.files.get(id(self))
        if known is None:
            known = survival.files[id(self)] = self._torn(survival.random)
        return known

    def _torn(self, random: Random) -> Inode:
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
        return Inode(bytes(survived))


class Directory:
    """Names, those that are durable, and the changes between the two in their order."""

    def __init__(self) -> None:
        self.names: dict[str, Directory | Inode] = {}
        self._durable: dict[str, Directory | Inode] = {}
        self._pending: list[_Change] = []

    def change(self, names: dict[str, Directory | Inode | None]) -> None:
        """Names that change in one step, to a node or to nothing."""
        self._change(_Change(names))

    def move(self, name: str, to: Directory, to_name: str) -> None:
        """Give one of the names, and what it names, to another directory."""
        node = self.names[name]
        move = _Move(is_directory=isinstance(node, Directory))
        to._change(_Change({to_name: node}, move))
        self._change(_Change({name: None}, move, leaves=True))

    def sync(self) -> None:
        for change in self._pending:
            if change.move is not None and change.leaves:
                change.move.left_durably = True
            elif change.move is not None:
                change.move.came_durably = True
        self._durable, self._pending = dict(self.names), []

    def after(self, survival: Survival) -> Directory:
        """The directory after the power went: any steps, but each only with those before it on its names or nodes."""
        names, lost_names, lost_nodes = dict(self._durable), set[str](), set[int]()
        chance = survival.random.choice((0.0, 0.5, 1.0))
        for change in self._pending:
            nodes = {id(node) for node in change.names.values() if node is not None}
            depends = lost_names & change.names.keys() or lost_nodes & nodes
            kept = not depends and survival.random.uniform(0, 1) < chance
            if survival.keeps(change, alone=kept):
                _rename(names, change.names)
            else:
                lost_names |= change.names.keys()
                lost_nodes |= nodes
        survived = Directory()
        survived.names = {name: node.after(survival) for name, node in sorted(names.items())}
        survived._durable = dict(survived.names)
        return survived

    def _change(self, change: _Change) -> None:
        _rename(self.names, change.names)
        self._pending.append(change)


class Survival:
    """One power crash: its random source, and what was decided so far."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.files: dict[int, Inode] = {}
        self._moves: dict[_Move, bool] = {}

    def keeps(self, change: _Change, *, alone: bool) -> bool:
        """Whether a change survives that `alone` would, or not: the two halves of a move do not contradict each other."""
        move = change.move
        if move is None:
            return alone
        decided = self._moves.setdefault(move, alone)
        if change.leaves:
            wanted = alone or move.is_directory
            return wanted if move.came_durably else decided and wanted
        if move.left_durably:
            return alone
        # What is gone from its old place has come; a file that is there still may be at both.
        return decided or (alone and not move.is_directory)


class _Move:
    """A move between two directories: which half of it is durable."""

    def __init__(self, *, is_directory: bool) -> None:
        self.is_directory = is_directory
        self.left_durably = False
        self.came_durably = False


class _Change(NamedTuple):
    """Names of one directory that change in one step; `leaves` = the half of a move that takes a name away."""

    names: dict[str, Directory | Inode | None]
    move: _Move | None = None
    leaves: bool = False


def _rename(names: dict[str, Directory | Inode], changes: dict[str, Directory | Inode | None]) -> None:
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
