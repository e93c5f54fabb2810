"""Traces of appends: a span per sampled append from stage to visible, and the trace contexts that followers get.

`store.commit` begins when an append has its seqs, has the event `durable` when its class is met, and ends when the append
is visible or failed. A retry of a known append has no span.
I1: without traces the engine reads `is_on` and calls nothing here.

`RecentTraces` holds the trace contexts of the newest commits, in memory alone, until followers have read them. A record
read later, or after a restart, has no trace; so the log's format has no trace field.
I2: at most `COMMITS_MAX` commits, none older than `AGE_S`; the oldest goes first. I3: a topic without traces takes no
memory.
Threading: event loop.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from eddyline.core.errors import EddylineError
from eddyline.core.telemetry import names as telemetry
from eddyline.core.telemetry.trace_context import SeqTrace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.runtime.clock import Clock
    from eddyline.core.telemetry.tracing import OpenSpan, Tracer
    from eddyline.store.log.append import Ack, AppendRequest
    from eddyline.store.log.topic import Topic
    from eddyline.store.write.staged import CommitFrame, StagedAppend


COMMITS_MAX: Final = 2_048
"""Half a megabyte."""
AGE_S: Final = 30.0
"""A follower further behind is catching up; its spans would show nothing else."""
TRACES_MAX: Final = 8
"""Traces of one item, which may have 4 096 records: 500 B."""


class _Commit(NamedTuple):
    topic_id: int
    at_s: float
    trace: SeqTrace


class RecentTraces:
    """Trace contexts of the newest commits. A topic's commits are added in the order of their seqs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._commits: deque[_Commit] = deque()
        self._by_topic: dict[int, deque[_Commit]] = {}

    def __len__(self) -> int:
        return len(self._commits)

    def put(self, topic_id: int, last_seq: int, traceparent: str) -> None:
        """Add a visible commit."""
        commit = _Commit(topic_id, self._clock.monotonic_s(), SeqTrace(last_seq, traceparent))
        self._commits.append(commit)
        self._by_topic.setdefault(topic_id, deque()).append(commit)
        while len(self._commits) > COMMITS_MAX:
            self._drop_oldest()

    def within(self, topic_id: int, first_seq: int, last_seq: int) -> tuple[SeqTrace, ...]:
        """Return the traces of a topic whose last seq is in a range, at most the first `TRACES_MAX`."""
        oldest_s = self._clock.monotonic_s() - AGE_S
        while self._commits and self._commits[0].at_s < oldest_s:
            self._drop_oldest()
        traces: list[SeqTrace] = []
        for commit in self._by_topic.get(topic_id, ()):
            if commit.trace.seq > last_seq or len(traces) == TRACES_MAX:
                break
            if commit.trace.seq >= first_seq:
                traces.append(commit.trace)
        return tuple(traces)

    def _drop_oldest(self) -> None:
        topic_id = self._commits.popleft().topic_id
        commits = self._by_topic[topic_id]
        commits.popleft()
        if not commits:
            del self._by_topic[topic_id]


class CommitTraces:
    """Spans and trace contexts of one shard; see the module."""

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self.is_on = tracer.is_on
        self.recent = RecentTraces(clock)
        self._tracer = tracer

    def staged(self, append: StagedAppend, request: AppendRequest) -> None:
        """Begin the span of an append that has its place. Batches of a source were sampled by ingest, or not."""
        if not append.batch.count or (request.source and not request.traceparent):
            return
        append.trace = self._tracer.start_root_span(
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
        """Record that the durability class of frames is met."""
        for frame in frames:
            for append in frame.appends:
                if append.trace is not None:
                    append.trace.event(telemetry.EVENT_DURABLE)

    def visible(self, topic: Topic, frame: CommitFrame) -> None:
        """End the spans of a visible frame. Called before followers of the topic are woken."""
        for append in frame.appends:
            if append.trace is not None:
                append.trace.end()
                self.recent.put(topic.id, append.first_seq + append.batch.count - 1, append.trace.traceparent)


def _end_if_failed(trace: OpenSpan, ack: Ack) -> None:
    error = ack.exception()
    if error is not None:
        trace.end(error.reason if isinstance(error, EddylineError) else type(error).__name__)
