"""Writers of one topic: fence and position, staged and stored.

A writer's position moves in the frame of its records. A move is checked by the two positions and the fence alone.
I1: the staged state is the stored one plus the appends in flight; a retry of one in flight waits for its outcome.
Threading: event loop only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.errors import StaleFence, StalePosition

if TYPE_CHECKING:
    from eddyline.store.log.append import Ack, WriterPosition


class StagedWriter(NamedTuple):
    """A writer after all staged appends. `ack` = the newest append's, None once it is stored.

    Everything up to `stored` is applied; it is behind `position` while appends are in flight."""

    fence: int
    position: bytes
    ack: Ack | None = None
    stored: bytes = b""
    moved_ms: int = 0
    """Commit time of its last move, from which idleness is counted; 0 = it only has a lease."""


class Writers:
    """The writers of one topic."""

    __slots__ = ("_staged",)

    def __init__(self) -> None:
        self._staged: dict[str, StagedWriter] = {}

    def get(self, writer: str) -> StagedWriter:
        """Return the writer as staged; fence 0 and an empty position if it never wrote."""
        return self._staged.get(writer) or StagedWriter(0, b"")

    def check(self, move: WriterPosition, *, leased: bool) -> StagedWriter | None:
        """Check a move. None = it is new; a writer = this very move is staged or stored already, but perhaps with an older
        fence.

        `leased` writers (sources) get their fence from a lease and must carry exactly it; any other writer takes over by
        carrying a larger one.

        Raises:
            StaleFence: a newer fence exists, or no lease has this one.
            StalePosition: the previous position is not the stored one.
        """
        current = self.get(move.writer)
        if move.fence < current.fence or (leased and move.fence != current.fence):
            raise StaleFence(
                f"writer {move.writer} has fence {current.fence}, the append has fence {move.fence}",
                writer=move.writer,
                fence=current.fence,
                carriedFence=move.fence,
            )
        if move.new == current.position and move.new:
            return current
        if move.previous != current.position:
            raise StalePosition(
                f"writer {move.writer} has another position than the append's previous one",
                writer=move.writer,
                position=current.position.hex(),
            )
        return None

    def stage(self, move: WriterPosition, ack: Ack) -> None:
        """Stage a checked move."""
        self._staged[move.writer] = StagedWriter(move.fence, move.new, ack, self.get(move.writer).stored)

    def commit(
        self,
        writer: str,
        fence: int,
        position: bytes,
        ack: Ack | None = None,
        *,
        now_ms: int = 0,
    ) -> None:
        """Store the move with this `ack` (None on replay): its retries are answered at once, unless a newer move is in
        flight."""
        current = self._staged.get(writer)
        if current is None or current.ack is ack or current.ack is None:
            fence = max(fence, current.fence if current else 0)
            self._staged[writer] = StagedWriter(fence, position, None, position, now_ms)
        else:
            self._staged[writer] = current._replace(stored=position, moved_ms=now_ms)

    def set_fence(self, writer: str, fence: int) -> None:
        """Refuse older fences from now on: a lease with this one was granted."""
        current = self.get(writer)
        self._staged[writer] = current._replace(fence=max(fence, current.fence))

    def stored(self) -> list[tuple[str, StagedWriter]]:
        """Return every writer by name: `stored` is its current position, `position` that after all appends in flight."""
        return sorted(self._staged.items())

    def expire(self, before_ms: int, *, kept: str) -> None:
        """Drop writers that have not moved since `before_ms`, except the one named `kept` (the topic's source)."""
        for name, current in list(self._staged.items()):
            if name != kept and current.ack is None and 0 < current.moved_ms < before_ms:
                del self._staged[name]

    def forget(self, writer: str) -> None:
        """Drop a writer: its source was deleted."""
        self._staged.pop(writer, None)
