"""Writers of one topic: fence and position, staged and stored.

A writer's position moves in the frame of its records; nothing is looked at but the two positions and the fence.
I1: the staged state is the stored one plus the appends under way; a retry of one under way waits for its outcome.
Threading: event loop only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.errors import StaleFence, StalePosition

if TYPE_CHECKING:
    from eddyline.store.log.append import Ack, WriterPosition


class StagedWriter(NamedTuple):
    """A writer after all that is staged. `ack` = the newest append's, None once it is stored.

    `stored` is the position up to which everything is applied, behind `position` while appends are under way.
    """

    fence: int
    position: bytes
    ack: Ack | None = None
    stored: bytes = b""
    moved_ms: int = 0
    """Commit time of its last move, or 0 where a lease alone is known: what idleness is counted from."""


class Writers:
    """The writers of one topic."""

    __slots__ = ("_staged",)

    def __init__(self) -> None:
        self._staged: dict[str, StagedWriter] = {}

    def get(self, writer: str) -> StagedWriter:
        """The writer as staged; fence 0 and empty position where it never wrote."""
        return self._staged.get(writer) or StagedWriter(0, b"")

    def check(self, move: WriterPosition, *, leased: bool) -> StagedWriter | None:
        """Judge a move. None = go on; a writer = this very move is staged or stored already, but perhaps not its fence.

        `leased` writers (sources) get their fence from a lease and must carry exactly it; any other writer takes over
        by carrying a larger one.

        Raises:
            StaleFence: a newer fence exists, or a lease that was never given.
            StalePosition: the previous position is not the stored one.
        """
        known = self.get(move.writer)
        if move.fence < known.fence or (leased and move.fence != known.fence):
            raise StaleFence(
                f"writer {move.writer} has fence {known.fence}, the append carries {move.fence}",
                writer=move.writer,
                fence=known.fence,
                carriedFence=move.fence,
            )
        if move.new == known.position and move.new:
            return known
        if move.previous != known.position:
            raise StalePosition(
                f"writer {move.writer} is at another position than the append's previous one",
                writer=move.writer,
                position=known.position.hex(),
            )
        return None

    def stage(self, move: WriterPosition, ack: Ack) -> None:
        """Take a judged move over."""
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
        """The move with this `ack` (None on replay) is stored: its retries are answered at once, unless a newer one is
        under way."""
        known = self._staged.get(writer)
        if known is None or known.ack is ack or known.ack is None:
            fence = max(fence, known.fence if known else 0)
            self._staged[writer] = StagedWriter(fence, position, None, position, now_ms)
        else:
            self._staged[writer] = known._replace(stored=position, moved_ms=now_ms)

    def set_fence(self, writer: str, fence: int) -> None:
        """A lease was given: older fences are refused from now on."""
        known = self.get(writer)
        self._staged[writer] = known._replace(fence=max(fence, known.fence))

    def stored(self) -> list[tuple[str, StagedWriter]]:
        """Every writer by name: `stored` is where it is, `position` where it will be once what is under way is stored."""
        return sorted(self._staged.items())

    def expire(self, before_ms: int, *, kept: str) -> None:
        """Forget writers that stand still since `before_ms`, but the one named `kept` (the topic's source)."""
        for name, known in list(self._staged.items()):
            if name != kept and known.ack is None and 0 < known.moved_ms < before_ms:
                del self._staged[name]

    def forget(self, writer: str) -> None:
        """A writer is gone with its source."""
        self._staged.pop(writer, None)
