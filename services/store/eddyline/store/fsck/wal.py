"""Check of every frame of every WAL file, by the cut-or-corruption rule, without cutting.

Damage in one shard ends its replay, not its check: later files are still checked one by one.
Threading: synchronous. A file is in memory as a whole during its check, as at a start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.errors import CatalogLost, DataCorrupt
from eddyline.store.storage.layout import parse_wal_temporary, temporary_file, wal_file, wal_numbers
from eddyline.store.storage.wal.scan import FileReplay, WalEnd, read_frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from eddyline.store.catalog.catalog import WalPosition
    from eddyline.store.fsck.findings import Findings
    from eddyline.store.fsck.read_only_fs import ReadOnlyFs
    from eddyline.store.storage.identity import Identity
    from eddyline.store.storage.wal.frame import WalFrame
    from eddyline.store.storage.wal.wal import Location

_SETTLED_AT_START = "nothing: the next start cuts it"


class ShardReader:
    """Reads single frames of one shard."""

    def __init__(self, fs: ReadOnlyFs, directory: Path, shard: int) -> None:
        self._fs = fs
        self._directory = directory
        self._shard = shard

    def read(self, location: Location) -> WalFrame:
        """Read the frame at a location.

        Raises:
            DataCorrupt.
        """
        return read_frame(self._fs, self._directory, self._shard, location)


class ShardCheck:
    """Checks one shard's files."""

    def __init__(
        self,
        fs: ReadOnlyFs,
        directory: Path,
        position: WalPosition,
        findings: Findings,
        *,
        identity: Identity | None,
        checkpoint: int,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._position = position
        self._findings = findings
        self._identity = identity
        self._checkpoint = checkpoint
        self.whole = True
        """False = frames are damaged or missing."""
        self.file_count = 0
        self.byte_count = 0

    def run(self, take: Callable[[WalFrame, Location], None]) -> None:
        """Pass every frame to `take`, until the first damage."""
        numbers = self._numbers()
        end, previous = WalEnd(0, 0), None
        for number in numbers:
            file_end = self._file(number, complete=number != numbers[-1], previous=previous, take=take)
            previous = file_end
            if file_end is None:
                continue
            end = file_end if file_end.file_bytes else end
            self._check_closed_end(file_end)
        self._check_clean(numbers, end)

    def _numbers(self) -> list[int]:
        names = self._fs.listdir(self._directory) if self._fs.exists(self._directory) else []
        present = set(wal_numbers(names))
        shard, state_number, data_number, previous_bytes, _ = self._position
        for name in names:
            number = parse_wal_temporary(name)
            if number is not None and number not in present and data_number <= number < state_number:
                path = wal_file(self._directory, number)
                self._fs.alias(path, temporary_file(path))
                present.add(number)
        numbers = sorted(number for number in present if number >= data_number)
        last = max([*numbers, state_number - 1 if previous_bytes >= 0 else 0, self._last_known(shard)])
        for number in range(data_number, last + 1):
            if number not in present:
                self._report(wal_file(self._directory, number), 0, "the file is missing")
        return numbers

    def _last_known(self, shard: int) -> int:
        identity = self._identity
        return identity.wal_number if identity is not None and shard == 0 else 0

    def _file(
        self, number: int, *, complete: bool, previous: WalEnd | None, take: Callable[[WalFrame, Location], None]
    ) -> WalEnd | None:
        path = wal_file(self._directory, number)
        self.file_count += 1

        def on_frame(frame: WalFrame, location: Location) -> None:
            self.byte_count += frame.frame_len
            if self.whole:
                take(frame, location)

        replay = FileReplay(
            self._fs,
            self._directory,
            self._position.shard,
            number=number,
            complete=complete,
            previous=previous,
            on_mark=self._on_mark,
            synced_to=self._position.state_offset if number == self._position.state_number else 0,
        )
        try:
            end = replay.replay(on_frame)
        except DataCorrupt as error:
            self._report(path, int(error.metadata.get("offset", 0)), error.message)
            return None
        except CatalogLost as error:
            self._report(path, 0, error.message)
            return None
        if not complete and self._ends_where_closed(end) and replay.tail(end).is_cut:
            what = "a torn tail, written after the last completed sync"
            self._findings.note(path, what, offset=end.file_bytes, to_do=_SETTLED_AT_START)
        return end

    def _on_mark(self, checkpoint: int) -> None:
        if checkpoint > self._checkpoint:
            raise CatalogLost(
                f"it was written after checkpoint {checkpoint}, the catalog has checkpoint {self._checkpoint}: the "
                "catalog is an older one"
            )

    def _ends_where_closed(self, file_end: WalEnd) -> bool:
        """Whether a file ends where a checkpoint closed it, if one did."""
        _, state_number, _, previous_bytes, _ = self._position
        return file_end.file_number != state_number - 1 or previous_bytes in (-1, file_end.file_bytes)

    def _check_closed_end(self, file_end: WalEnd) -> None:
        if not self._ends_where_closed(file_end):
            previous_bytes = self._position.previous_bytes
            what = f"it has {file_end.file_bytes} bytes of frames, and had {previous_bytes} at the checkpoint"
            self._report(wal_file(self._directory, file_end.file_number), file_end.file_bytes, what)

    def _check_clean(self, numbers: list[int], end: WalEnd) -> None:
        identity = self._identity
        if identity is None or not identity.clean or not identity.wal_bytes or self._position.shard or not self.whole:
            return
        expected = WalEnd(identity.wal_number, identity.wal_bytes)
        if numbers and expected.file_number >= self._position.data_number and end != expected:
            what = (
                f"the last clean stop ended the log at {expected.file_bytes} bytes of file {expected.file_number:016x}"
            )
            number = max(end.file_number, expected.file_number)
            self._report(wal_file(self._directory, number), end.file_bytes if end.file_number == number else 0, what)

    def _report(self, path: Path, offset: int, what: str) -> None:
        self.whole = False
        self._findings.error(path, what, offset=offset)
