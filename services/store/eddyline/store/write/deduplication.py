"""Deduplication of retries: finds the append that another one repeats, by its idempotency key or its writer's position.

I1: a retry of an append in flight waits for that append's outcome and returns it; a retry of a stored append is answered at
once. Nothing is staged here.
Threading: event loop only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.store_link.protocol import AppendResult
from eddyline.store.log.append import Ack, acknowledged
from eddyline.store.log.idempotency_keys import PendingAppend
from eddyline.store.storage.wal.columns import content_hash
from eddyline.store.write.staged import fail_future

if TYPE_CHECKING:
    from eddyline.store.log.append import AppendRequest
    from eddyline.store.log.topic import Topic
    from eddyline.store.runtime.age_clock import AgeClock


class Duplicate(NamedTuple):
    """The acknowledgement of an append staged before. `raises_fence`: its writer is at the new position already, but
    carries a larger fence, which must be stored before the answer."""

    ack: Ack
    raises_fence: bool


def find_duplicate(topic: Topic, request: AppendRequest, ages: AgeClock) -> Duplicate | None:
    """Return the earlier append that this one repeats; None = it is a new one. `ages` dates idempotency keys.

    Raises:
        IdempotencyConflict: the key stands for other content. StaleFence, StalePosition.
    """
    ack = _ack_of_key(topic, request, ages) if request.idempotency_key else None
    move = request.writer
    if move is None:
        return Duplicate(ack, raises_fence=False) if ack is not None else None
    writers = topic.writers
    if ack is not None:
        writer = writers.get(move.writer)
    else:
        repeated_at = writers.check(move, leased=request.source)
        if repeated_at is None:
            return None
        writer = repeated_at
        ack = follow_ack(writer.ack) if writer.ack is not None else acknowledged(_stored_move(topic))
    return Duplicate(ack, raises_fence=move.new == writer.position and move.fence > writer.fence)


def follow_ack(first: Ack, answer: Ack | None = None) -> Ack:
    """Return a second acknowledgement of an append in flight. It resolves with `first`: marked as deduplicated, with the
    result of `first` or that of `answer`, which was staged before `first` and is resolved by then."""
    second = Ack()

    def resolve_second(done: asyncio.Future[AppendResult]) -> None:
        if second.done():
            return
        if (error := done.exception()) is not None:
            fail_future(second, error if isinstance(error, Exception) else RuntimeError("append failed"))
        else:
            second.set_result((answer or done).result()._replace(deduplicated=True))

    first.add_done_callback(resolve_second)
    return second


def _ack_of_key(topic: Topic, request: AppendRequest, ages: AgeClock) -> Ack | None:
    match = topic.keys.find(
        request.idempotency_key.encode(),
        content_hash(request.batch),
        now_ms=ages.now_ms(),
        window_ms=topic.config.idempotency_window_ms,
    )
    if isinstance(match, PendingAppend):
        return follow_ack(match.ack)
    if match is not None:
        return acknowledged(AppendResult(match.first_seq, match.last_seq, topic.id, match.ts_ms, deduplicated=True))
    return None


def _stored_move(topic: Topic) -> AppendResult:
    """Return the answer to a stored move: its seqs are no longer known."""
    return AppendResult(0, 0, topic.id, topic.last_ts_ms, deduplicated=True)
