"""A source that stands still: the stop that only a resync ends, and polls of its stream's head and settings.

Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.core.errors import EddylineError
from eddyline.core.model.source import PERSISTENT_STOP, SourceStop
from eddyline.ingest.copy.position import decode_position
from eddyline.ingest.resync.resume_check import held_stop, matches_position

if TYPE_CHECKING:
    from eddyline.core.model.source import SourceDefinition
    from eddyline.ingest.copy.forward import Forward
    from eddyline.ingest.copy.progress import CopyProgress
    from eddyline.ingest.copy.stopped import SourceStopped
    from eddyline.ingest.nats.jetstream import JetStream
    from eddyline.ingest.sources.control import SourceControl
    from eddyline.ingest.sources.stream_warnings import StreamWarnings


class Standstill:
    """Standstill of one source. `stop` = the stop that only a resync ends, as the store has it or will have it after the
    next report."""

    def __init__(
        self,
        stop: SourceStop | None,
        *,
        jetstream: JetStream,
        forward: Forward,
        progress: CopyProgress,
        control: SourceControl,
        warnings: StreamWarnings,
    ) -> None:
        self.stop = stop
        self._jetstream = jetstream
        self._forward = forward
        self._progress = progress
        self._control = control
        self._warnings = warnings

    def check(self) -> None:
        """Raise SourceStopped where a stop holds and no resync was requested, whether NATS is connected or not."""
        position = decode_position(self._forward.stored)
        held = held_stop(self.stop, position)
        if held is not None and position is not None and position.resync_serial >= self._control.resync_serial:
            raise held

    def record_stop(self, stopped: SourceStopped) -> None:
        """Remember a stop of the kind that the store persists."""
        if stopped.state == PERSISTENT_STOP:
            self.stop = SourceStop(stopped.state, stopped.reason, self._forward.stored)

    async def update_head(self, definition: SourceDefinition) -> None:
        """Read the stream's head, so that lag is reported while nothing is copied. A request that fails is repeated at the
        next poll.

        The last revision of the previous stream stays known where the stream is another one now: a resync reports it as
        lost.
        """
        try:
            stream = await self._jetstream.source_stream(definition)
            self._warnings.warn_once(stream)
            position = decode_position(self._forward.stored)
            is_ours = position is None or (
                held_stop(self.stop, position) is None and await matches_position(self._jetstream, stream, position)
            )
        except EddylineError:
            return
        if is_ours:
            self._progress.set_head(stream.last_revision)
        else:
            self._progress.set_other_head(stream.last_revision)
