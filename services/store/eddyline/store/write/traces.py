"""Traces through the store: a sampled append's span, from its stage until it is visible, and what followers are told.

`store.commit` begins when an append has its seqs, says `durable` when its class is met, and ends when it is applied and
visible, or failed. A retry that is known is no commit, and has none.
I1: where nothing is traced nothing here is called but to see that (`is_on`).
Threading: event loop.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from eddyline.core.errors import EddylineError
from eddyline.core.telemetry import names as telemetry
from eddyline.store.write.recent_traces import RecentTraces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.runtime.clock import Clock
    from eddyline.core.telemetry.tracing import OpenSpan, Tracer
    from eddyline.store.log.ack import Ack
    from eddyline.store.log.append import AppendRequest
    from eddyline.store.log.topic import Topic
    from eddyline.store.write.group_commit import CommitFrame, StagedAppend


class CommitTraces:
    """Those of a shard; see the module."""

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self.is_on = tracer.is_on
        self.recent = RecentTraces(clock)
        self._tracer = tracer

    def staged(self, append: StagedAppend, request: AppendRequest) -> None:
        """An append has its place. What a source brings was sampled by ingest, or not."""
        if not append.batch.count or (request.source and not request.traceparent):
            return
        append.trace = self._tracer.enter(
            telemetry.SPAN_STORE_COMMIT,
            request.traceparent,
            {
                telemetry.ATTRIBUTE_TOPIC: append.topic.name,
                telemetry.ATTRIBUTE_EPOCH: append.topic.id,
                telemetry.ATTRIBUTE_FIRST_SEQ: append.first_seq,
                telemetry.ATTRIBUTE_RECORDS: append.batch.count,
            },
        )
        if append.trace is not None:
            append.ack.add_done_callback(partial(_end_if_failed, append.trace))

    def durable(self, frames: Sequence[CommitFrame]) -> None:
        """The class of frames is met."""
        for frame in frames:
            for append in frame.appends:
                if append.trace is not None:
                    append.trace.event(telemetry.EVENT_DURABLE)

    def visible(self, topic: Topic, frame: CommitFrame) -> None:
        """A frame is applied, and its records can be read. Called before those who follow the topic hear of it."""
        for append in frame.appends:
            if append.trace is not None:
                append.trace.end()
                self.recent.put(topic.id, append.first_seq + append.batch.count - 1, append.trace.traceparent)


def _end_if_failed(trace: OpenSpan, ack: Ack) -> None:
    error = ack.exception()
    if error is not None:
        trace.end(error.reason if isinstance(error, EddylineError) else type(error).__name__)
