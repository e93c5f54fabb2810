"""Appends to one topic, many in flight, in their order: one AppendStream call (`gathered_call.py`).

The first failure ends the stream: what was answered before it stands, and every later append raises that failure. After
`UNAVAILABLE` the outcome of those in flight is unknown; an idempotency key settles it on a new stream.
Threading: one event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.client.append.gathered_call import GatheredCall
from eddyline.client.transport.call import check_message
from eddyline.client.transport.checked import rows_of
from eddyline.core.store_link.append_steps import STEP_ENVELOPE_BYTES
from eddyline.v1 import log_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.client.append.gathered_call import Acknowledgement, AppendCall
    from eddyline.core.records.record import Record
    from eddyline.core.store_link.protocol import AppendResult


class AppendStream:
    """One open stream; `Client.append_stream` opens and closes it. Appends come from one task."""

    def __init__(self, call: AppendCall) -> None:
        self.call = GatheredCall(call, on_outcome=self._count, independent=False)
        """The call, for the stream's opener."""
        self.acknowledged = 0
        """Appends whose success is known; all of them came before any other."""
        self.first_seq = 0
        self.last_seq = 0

    async def append(
        self, records: Sequence[Record], *, idempotency_key: str = "", expected_head_seq: int | None = None
    ) -> Acknowledgement:
        """Queue one append, which goes with others that wait; returns at once unless as many as may be are in flight.
        Await what it returns for the outcome.

        Raises:
            EddylineError: the stream has failed before. BatchTooLarge: more than 64 MiB; the stream goes on.
        """
        step = log_pb2.AppendBatch(
            rows=rows_of(records),
            idempotency_key=idempotency_key,
            expected_head_seq=expected_head_seq,
        )
        check_message(step, around_bytes=STEP_ENVELOPE_BYTES)
        return await self.call.put(step.SerializeToString())

    async def flush(self) -> None:
        """Wait for the outcome of everything sent.

        Raises:
            EddylineError: what the stream failed with.
        """
        await self.call.flush()
        if self.call.failure is not None:
            raise self.call.failure

    async def finish(self) -> None:
        """Flush, and end the call. For the stream's opener.

        Raises:
            EddylineError: what the stream failed with.
        """
        await self.flush()
        await self.call.finish()

    def _count(self, result: AppendResult) -> None:
        self.acknowledged += 1
        self.first_seq = self.first_seq or result.first_seq
        self.last_seq = max(self.last_seq, result.last_seq)
