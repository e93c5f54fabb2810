"""How what waits for a commit learns that it failed: refused, or of unknown outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.errors import ReadOnly

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from eddyline.store.log.append import Ack
    from eddyline.store.write.group_commit import CommitFrame


def read_only(reason: str) -> ReadOnly:
    """The refusal of a shard that serves only reads."""
    return ReadOnly(f"the shard serves only reads until it is restarted: {reason}", cause=reason)


def settle(future: Ack | asyncio.Future[None], error: Exception) -> None:
    """Fail a future that may have been cancelled by its caller."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # a caller that went away leaves nobody to retrieve it


def settle_frames(frames: Sequence[CommitFrame], error: Exception) -> None:
    """Fail every caller of frames."""
    for frame in frames:
        for append in frame.appends:
            settle(append.ack, error)
        if frame.control is not None:
            settle(frame.control.done, error)
