"""An append request in core values, and its acknowledgement: a future that its caller cannot cancel.

`Ack` replaces `asyncio.shield` around a plain future, which is a future and two turns of the event loop more per append
(`tests/bench/README.md`, P1).
Threading: event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from eddyline.core.store_link.protocol import AppendResult

if TYPE_CHECKING:
    from eddyline.core.model.topic import Kind, TopicConfig
    from eddyline.core.records.batch import Batch


class WriterPosition(NamedTuple):
    """A writer's move from `previous` to `new`, under `fence`, in the commit of the records."""

    writer: str
    fence: int
    previous: bytes
    new: bytes


class NewTopic(NamedTuple):
    """Kind and configuration of a topic that an append creates if it is missing."""

    kind: Kind
    config: TopicConfig


class AppendRequest(NamedTuple):
    """One append: a validated batch without seqs, and its conditions.

    `epoch` 0 and `expected_head_seq` None are not checked; an expected version of b"" = the key must not be live; `create`
    None = a missing topic is TopicNotFound. `source` = the batch comes from the topic's own source, by ApplyBatch.
    `traceparent` = the trace context of the caller; "" = none."""

    topic: str
    batch: Batch
    epoch: int = 0
    idempotency_key: str = ""
    expected_head_seq: int | None = None
    expected_versions: tuple[tuple[bytes, bytes], ...] = ()
    writer: WriterPosition | None = None
    create: NewTopic | None = None
    source: bool = False
    traceparent: str = ""


class Ack(asyncio.Future[AppendResult]):
    """Resolves once the append is committed or refused, and not before: a task that is cancelled while it awaits this one
    ends then, with the append's outcome known, or at the store's stop."""

    def cancel(self, msg: object = None) -> bool:
        """Return False: an append that has its place keeps it."""
        return False


def acknowledged(result: AppendResult) -> Ack:
    """Return an acknowledgement with a known outcome."""
    ack = Ack()
    ack.set_result(result)
    return ack
