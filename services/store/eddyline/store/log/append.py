"""What an append asks of the store, in core values: the request, and the writer's move that it carries.

An append's acknowledgement: a future that whoever goes away does not take back.

In place of `asyncio.shield` around a plain one, which is a future and two turns of the loop more for each append
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
    """A writer's move: it goes from `previous` to `new` in the commit of the records, under `fence`."""

    writer: str
    fence: int
    previous: bytes
    new: bytes


class NewTopic(NamedTuple):
    """How a missing topic is made by an append."""

    kind: Kind
    config: TopicConfig


class AppendRequest(NamedTuple):
    """One append: a validated batch without seqs, and the conditions under which it is taken.

    `epoch` 0 and `expected_head_seq` None are not checked; an expected version of b"" = the key must not be live;
    `create` None = a missing topic is TopicNotFound. `source` = the batch comes from the topic's own source, by ApplyBatch.
    `traceparent` = what the caller says of the trace that it is part of; "" = nothing.
    """

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
    """Resolves when the append is committed or refused, and not before: a task that is cancelled while it awaits this one
    ends then, by the append's outcome made known or by the store's end."""

    def cancel(self, msg: object = None) -> bool:
        """Always False: an append that has its place keeps it."""
        return False


def acknowledged(result: AppendResult) -> Ack:
    """That of an append whose outcome is known."""
    ack = Ack()
    ack.set_result(result)
    return ack
