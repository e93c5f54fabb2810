"""The live values and the history of keys of a KV topic: reads of the store's fold, for `Client`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from eddyline.client.read.fold import get_columns, get_entries, get_entry_at, key_history, range_entries
from eddyline.client.watch.events import START, position_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.client.transport.call import Retry
    from eddyline.client.transport.items import Items
    from eddyline.client.watch.events import Position
    from eddyline.core.model.read import EntryPage, RangePage
    from eddyline.core.model.topic import TopicInfo
    from eddyline.core.records.record import Gap, Record
    from eddyline.v1.fold_pb2_grpc import FoldServiceStub


class _FoldCaller(Protocol):
    _retry: Retry

    def _fold(self, topic: str) -> FoldServiceStub: ...

    async def get_topic(self, name: str) -> TopicInfo: ...

    async def get_many(self, topic: str, keys: Sequence[bytes], *, min_seq: int = 0) -> EntryPage: ...


class KeyReads:
    """The reads of keys, for `Client`."""

    async def get(self: _FoldCaller, topic: str, key: bytes, *, min_seq: int = 0) -> Record | None:
        """The record that wrote the key's live value; None = not live.

        Raises:
            EddylineError: TopicNotFound, NotKv, FoldBehind.
        """
        return (await self.get_many(topic, [key], min_seq=min_seq)).entries[0]

    async def get_many(self: _FoldCaller, topic: str, keys: Sequence[bytes], *, min_seq: int = 0) -> EntryPage:
        """Live entries of up to 10 000 keys at one point, in the order of `keys`; None = not live.

        Raises:
            EddylineError: TopicNotFound, NotKv, FoldBehind, InvalidArgument.
        """
        return await get_entries(self._fold(topic), topic, keys, min_seq=min_seq, retry=self._retry)

    async def get_columns(self: _FoldCaller, topic: str, keys: Sequence[bytes], *, min_seq: int = 0) -> RangePage:
        """The live entries of up to 10 000 keys at one point as one batch, in the order of `keys`; no record is made.

        A key that is not in the batch is not live; None = none is. The entry of a repeated key comes each time. Versions
        are as stored: an empty one stands for the seq.

        Raises:
            EddylineError: TopicNotFound, NotKv, FoldBehind, InvalidArgument.
        """
        return await get_columns(self._fold(topic), topic, keys, min_seq=min_seq, retry=self._retry)

    async def get_at(
        self: _FoldCaller, topic: str, key: bytes, *, at_seq: int | None = None, at_time_ms: int | None = None
    ) -> EntryPage:
        """A key as it was after the record of a seq, or after the last one committed at or before a time: by exactly
        one.

        The page has one entry, None = not live then; its state's `fold_seq` is the point that it is of.

        Raises:
            EddylineError: TopicNotFound, NotKv, CursorAhead, TimeNotReached, HistoryGone, FoldLost, DataCorrupt.
        """
        return await get_entry_at(
            self._fold(topic), topic, key, at_seq=at_seq, at_time_ms=at_time_ms, retry=self._retry
        )

    def history(
        self: _FoldCaller, topic: str, key: bytes, *, after: Position | int = START, limit: int = 0
    ) -> Items[Record | Gap]:
        """Revisions of one key behind `after` (exclusive), oldest first, up to the head, at most `limit` (0 = all).

        Lost records, perhaps revisions of the key, come as gaps in their places. A caller that stops early closes it.

        Raises:
            EddylineError: TopicNotFound, NotKv, EpochMismatch, CursorAhead, DataCorrupt.
        """

        async def epoch_now() -> int:
            return (await self.get_topic(topic)).epoch

        return key_history(
            self._fold(topic),
            topic,
            key,
            after=position_of(after),
            limit=limit,
            epoch_now=epoch_now,
            retry=self._retry,
        )

    def range(
        self: _FoldCaller,
        topic: str,
        *,
        key_prefix: bytes = b"",
        after_key: bytes = b"",
        limit: int = 0,
        min_seq: int = 0,
    ) -> Items[Record]:
        """Live entries in byte order of their keys, all at one point; `limit` 0 = all.

        Raises:
            EddylineError: TopicNotFound, NotKv, FoldBehind, TooManyScans, ScanExpired.
        """
        return range_entries(
            self._fold(topic), topic, key_prefix=key_prefix, after_key=after_key, limit=limit, min_seq=min_seq
        )
