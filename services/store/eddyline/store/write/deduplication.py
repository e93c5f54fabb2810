"""Retries: the append that another one repeats, known by its idempotency key or by its writer's position.

I1: a retry of an append under way waits for that one's outcome and is answered with it; one that is stored is answered at
once. Nothing is staged here.
Threading: event loop only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.store_link.protocol import AppendResult
from eddyline.store.log.append import acknowledged, new_ack
from eddyline.store.log.idempotency_keys import PendingAppend
from eddyline.store.storage.wal.columns import content_hash
from eddyline.store.write.staged import fail_future

if TYPE_CHECKING:
    from eddyline.store.log.append import Ack, AppendRequest
    from eddyline.store.log.topic import Topic


class Retry(NamedTuple):
    """The acknowledgement of a known append. `raises_fence`: its writer is where it wants to be, but carries a larger fence,
    which has to be stored before it is answered."""

    ack: Ack
    raises_fence: bool


def find(topic: Topic, request: AppendRequest, *, now_ms: int) -> Retry | None:
    """The append that this one repeats; None = it is a new one.

    Raises:
        IdempotencyConflict: the key stands for other content. StaleFence, StalePosition.
    """
    known = _by_key(topic, request, now_ms)
    move = request.writer
    if move is None:
        return Retry(known, raises_fence=False) if known is not None else None
    writer = topic.writers.get(move.writer)
    if known is None:
        found = topic.writers.check(move, leased=request.source)
        if found is None:
            return None
        writer = found
        known = repeated(writer.ack) if writer.ack is not None else acknowledged(_stored(topic))
    return Retry(known, raises_fence=move.new == writer.position and move.fence > writer.fence)


def repeated(awaited: Ack, answer: Ack | None = None) -> Ack:
    """A second acknowledgement of an append under way, marked as such: when `awaited` is settled, with its result or that
    of `answer`, which was staged before it and is settled then."""
    second = new_ack()

    def settle_second(done: asyncio.Future[AppendResult]) -> None:
        if second.done():
            return
        if (error := done.exception()) is not None:
            fail_future(second, error if isinstance(error, Exception) else RuntimeError("append failed"))
        else:
            second.set_result((answer or done).result()._replace(deduplicated=True))

    awaited.add_done_callback(settle_second)
    return second


def _by_key(topic: Topic, request: AppendRequest, now_ms: int) -> Ack | None:
    if not request.idempotency_key:
        return None
    found = topic.keys.find(
        request.idempotency_key.encode(),
        content_hash(request.batch),
        now_ms=now_ms,
        window_ms=topic.config.idempotency_window_ms,
    )
    if isinstance(found, PendingAppend):
        return repeated(found.ack)
    if found is not None:
        return acknowledged(AppendResult(found.first_seq, found.last_seq, topic.id, found.ts_ms, deduplicated=True))
    return None


def _stored(topic: Topic) -> AppendResult:
    """The answer to a move that is stored: its seqs are not known any more."""
    return AppendResult(0, 0, topic.id, topic.last_ts_ms, deduplicated=True)
