"""FoldService: keys, ranges, checks of folds, artifacts; current and past. Translates, validates, waits, delegates.

Reads of keys return the bytes of their answer, which are made of the stored entries without protobuf objects
(`codec/entries.py` of core).
Waits (`min_seq`, `min_version`) end with FOLD_BEHIND shortly before the caller's deadline, or after 30 s.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from eddyline.core.codec import calls as wire_calls
from eddyline.core.codec import entries as wire_entries
from eddyline.core.codec import records as wire
from eddyline.core.codec import state as wire_state
from eddyline.core.errors import FoldBehind, InvalidArgument, KeyNotFound, NotKv
from eddyline.core.model.source import OTHER_STREAM_STATES
from eddyline.core.model.topic import Kind
from eddyline.core.records.fold_entry import decode_entry
from eddyline.core.records.record import (
    KEY_BYTES_MAX,
    VERSION_BYTES_MAX,
    Gap,
    compare_versions,
    effective_version,
)
from eddyline.core.server.deadline import wait_timeout_s
from eddyline.core.server.quick_calls import QuickMethod
from eddyline.core.server.server import RawMethod
from eddyline.store.fold.entries import entries_to_batch
from eddyline.store.read.point_read import CACHED_KEYS_MAX, check_keys
from eddyline.v1 import fold_pb2, fold_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from eddyline.core.model.read import EntryPage, FoldState, RangePage
    from eddyline.core.records.batch import Batch
    from eddyline.core.runtime.clock import Clock
    from eddyline.core.server.deadline import CallContext
    from eddyline.store.read.point_read import StoredPage
    from eddyline.store.rpc.limits import ScanLimit
    from eddyline.store.rpc.shard_handle import ShardHandle
    from eddyline.store.shard.api import ShardApi

WAIT_S_MAX: Final = 30.0


class FoldServicer(fold_pb2_grpc.FoldServiceServicer):
    """FoldService on the shard of a handle."""

    def __init__(self, handle: ShardHandle, room: ScanLimit, *, clock: Clock) -> None:
        self._handle = handle
        self._room = room
        self._clock = clock

    def raw_methods(self) -> dict[str, RawMethod]:
        """Return the methods whose answers are bytes, to register in place of the generated ones."""
        return {
            "GetEntry": RawMethod(self.GetEntry, fold_pb2.GetEntryRequest.FromString),
            "BatchGetEntries": RawMethod(self.BatchGetEntries, fold_pb2.BatchGetEntriesRequest.FromString),
        }

    def quick_methods(self) -> dict[str, QuickMethod]:
        """Return how reads of keys in memory are answered at once."""
        return {
            "GetEntry": QuickMethod(fold_pb2.GetEntryRequest.FromString, self._get_now),
            "BatchGetEntries": QuickMethod(fold_pb2.BatchGetEntriesRequest.FromString, self._batch_get_now),
        }

    def _get_now(self, request: fold_pb2.GetEntryRequest, _metadata: object) -> bytes | None:
        if request.min_seq or request.min_version or request.WhichOneof("at") is not None:
            return None
        key = request.key
        _check_key(key, "key", bytes_min=1)
        page = self._handle.get().get_cached_entries(request.topic, (key,))
        if page is None or (value := page.values[0]) is None:
            return None
        return wire_entries.encode_get(key, value, wire_state.fold_state_to_pb(page.state).SerializeToString())

    def _batch_get_now(self, request: fold_pb2.BatchGetEntriesRequest, _metadata: object) -> bytes | None:
        if request.min_seq or len(request.keys) > CACHED_KEYS_MAX:
            return None
        as_columns = wire.wants_columns(request.format)
        page = self._handle.get().get_cached_entries(request.topic, list(request.keys))
        return None if page is None else _batch_answer(page, as_columns=as_columns)

    async def GetEntry(  # type: ignore[override]  # see `raw_methods`
        self, request: fold_pb2.GetEntryRequest, context: CallContext
    ) -> bytes:
        shard = self._handle.get()
        _check_key(request.key, "key", bytes_min=1)
        if len(request.min_version) > VERSION_BYTES_MAX:
            raise InvalidArgument(
                f"a version has at most {VERSION_BYTES_MAX} bytes, not {len(request.min_version)}",
                field="min_version",
                versionBytes=len(request.min_version),
                versionBytesMax=VERSION_BYTES_MAX,
            )
        if request.WhichOneof("at") is not None:
            past = await self._get_as_of(shard, request, context)
            if past.entries[0] is None:
                raise _not_live(request, past.state)
            row, past_state = wire.record_to_pb(past.entries[0]), wire_state.fold_state_to_pb(past.state)
            return fold_pb2.GetEntryResponse(entry=row, state=past_state).SerializeToString()
        if request.min_seq or request.min_version:
            page = await self._handle.cancel_on_stop(self._get_at(shard, request, wait_timeout_s(context, WAIT_S_MAX)))
        else:
            page = await shard.get_stored_entries(request.topic, [request.key])
        value = page.values[0]
        if value is None:
            raise _not_live(request, page.state)
        return wire_entries.encode_get(request.key, value, wire_state.fold_state_to_pb(page.state).SerializeToString())

    async def BatchGetEntries(  # type: ignore[override]  # see `raw_methods`
        self, request: fold_pb2.BatchGetEntriesRequest, context: CallContext
    ) -> bytes:
        shard = self._handle.get()
        as_columns = wire.wants_columns(request.format)
        keys = list(request.keys)
        check_keys(keys)
        await self._reach(shard, request.topic, request.min_seq, context)
        return _batch_answer(await shard.get_stored_entries(request.topic, keys), as_columns=as_columns)

    async def RangeEntries(
        self, request: fold_pb2.RangeEntriesRequest, context: CallContext
    ) -> AsyncGenerator[fold_pb2.RangeEntriesResponse, None]:
        shard = self._handle.get()
        as_columns = wire.wants_columns(request.format)
        _check_key(request.key_prefix, "key_prefix")
        _check_key(request.after_key, "after_key")
        await self._reach(shard, request.topic, request.min_seq, context)
        pages = shard.range_entries(
            request.topic, key_prefix=request.key_prefix, after_key=request.after_key, limit=request.limit
        )
        # Closed here, not by the garbage collector: the view of a cancelled call would pin files until then.
        with self._room.of(context):
            async with aclosing(pages):
                async for page in pages:
                    yield _range_answer(page, as_columns=as_columns)

    async def KeyHistory(
        self, request: fold_pb2.KeyHistoryRequest, context: CallContext
    ) -> AsyncGenerator[fold_pb2.KeyHistoryResponse, None]:
        shard = self._handle.get()
        as_columns = wire.wants_columns(request.format)
        _check_key(request.key, "key", bytes_min=1)
        revisions = shard.key_history(
            request.topic, request.key, after_seq=request.after_seq, limit=request.limit, epoch=request.epoch
        )
        async with aclosing(self._handle.each_until_stop(revisions)) as items:
            async for item in items:
                yield _history_answer(item, as_columns=as_columns)

    async def VerifyFold(
        self, request: fold_pb2.VerifyFoldRequest, context: CallContext
    ) -> AsyncGenerator[fold_pb2.VerifyFoldResponse, None]:
        shard = self._handle.get()
        with self._room.of(context):
            async with aclosing(self._handle.each_until_stop(shard.verify_fold(request.topic))) as steps:
                async for step in steps:
                    yield wire_calls.verify_step_to_pb(step)

    async def SettleFold(self, request: fold_pb2.SettleFoldRequest, context: object) -> fold_pb2.SettleFoldResponse:
        settled = await self._handle.get().settle_fold(request.topic, if_epoch=request.if_epoch)
        return wire_calls.settled_to_pb(settled)

    async def ExportFold(
        self, request: fold_pb2.ExportFoldRequest, context: CallContext
    ) -> AsyncGenerator[fold_pb2.ExportFoldResponse, None]:
        steps = self._handle.get().export_fold(request.topic, if_epoch=request.if_epoch)
        with self._room.of(context):
            async with aclosing(self._handle.each_until_stop(steps)) as answers:
                async for step in answers:
                    yield wire_calls.export_step_to_pb(step)

    async def ImportFold(
        self, request: fold_pb2.ImportFoldRequest, context: CallContext
    ) -> AsyncGenerator[fold_pb2.ImportFoldResponse, None]:
        steps = self._handle.get().import_fold(
            request.topic, from_topic=request.from_topic, artifact=request.artifact, if_epoch=request.if_epoch
        )
        with self._room.of(context):
            async with aclosing(self._handle.each_until_stop(steps)) as answers:
                async for step in answers:
                    yield wire_calls.import_step_to_pb(step)

    async def ListArtifacts(
        self, request: fold_pb2.ListArtifactsRequest, context: object
    ) -> fold_pb2.ListArtifactsResponse:
        artifacts = await self._handle.get().list_artifacts(request.topic)
        return fold_pb2.ListArtifactsResponse(artifacts=map(wire_calls.artifact_to_pb, artifacts))

    async def _reach(self, shard: ShardApi, topic: str, min_seq: int, context: CallContext) -> None:
        """Wait until the fold has `min_seq`; 0 = no wait."""
        if min_seq:
            await self._handle.cancel_on_stop(_wait_seq(shard, topic, min_seq, wait_timeout_s(context, WAIT_S_MAX)))

    async def _get_as_of(self, shard: ShardApi, request: fold_pb2.GetEntryRequest, context: CallContext) -> EntryPage:
        """Read a key as it was at a seq or time."""
        if request.min_version:
            message = "min_version waits for a later state, at_seq and at_time_ms read an earlier one: leave one out"
            raise InvalidArgument(message, field="min_version")
        await self._reach(shard, request.topic, request.min_seq, context)
        if request.HasField("at_seq"):
            return await shard.entry_at(request.topic, request.key, at_seq=request.at_seq)
        return await shard.entry_at(request.topic, request.key, at_time_ms=request.at_time_ms)

    async def _get_at(self, shard: ShardApi, request: fold_pb2.GetEntryRequest, wait_s: float) -> StoredPage:
        """Read a key once the fold has `min_seq` and the key has `min_version`."""
        end_s = self._clock.monotonic_s() + wait_s
        if request.min_seq:
            await _wait_seq(shard, request.topic, request.min_seq, wait_s)
        while True:
            page = await shard.get_stored_entries(request.topic, [request.key])
            if not request.min_version:
                return page
            # Versions of one copied stream cannot be compared with those of the stream that replaced it.
            is_of_another = page.state.source_state in OTHER_STREAM_STATES
            if not is_of_another and _has_version(page, request.min_version):
                return page
            # Any append to the topic wakes this, not only one to the key: one read per commit, for 30 s at most.
            await _wait_seq(shard, request.topic, page.state.fold_seq + 1, end_s - self._clock.monotonic_s())


async def _wait_seq(shard: ShardApi, topic: str, seq: int, wait_s: float) -> None:
    info = await shard.get_topic(topic)
    if info.kind is not Kind.KV:
        raise NotKv(f"topic {topic} has no fold", topic=topic)
    fold_seq = await shard.wait_seq(topic, seq, wait_s=wait_s)
    if fold_seq < seq:
        raise FoldBehind(
            f"the fold of topic {topic} is at {fold_seq}, below the requested seq {seq}", topic=topic, foldSeq=fold_seq
        )


def _has_version(page: StoredPage, version: bytes) -> bool:
    value = page.values[0]
    if value is None:
        return False
    entry = decode_entry(page.keys[0], value)
    return compare_versions(effective_version(entry.version, entry.seq), version) >= 0


def _not_live(request: fold_pb2.GetEntryRequest, state: FoldState) -> KeyNotFound:
    return KeyNotFound(
        f"key {request.key[:64]!r} of topic {request.topic} is not live at seq {state.fold_seq}",
        topic=request.topic,
        key=request.key.hex(),
        foldSeq=state.fold_seq,
    )


def _batch_answer(page: StoredPage, *, as_columns: bool) -> bytes:
    """Encode a BatchGetEntriesResponse."""
    state = wire_state.fold_state_to_pb(page.state)
    keys, values = page.keys, page.values
    if as_columns:
        live = [key for key, value in zip(keys, values, strict=True) if value is not None]
        answer = fold_pb2.BatchGetEntriesResponse(state=state)
        wire.fill_columns(answer.columns, entries_to_batch(live, [value for value in values if value is not None]))
        return answer.SerializeToString()
    return wire_entries.encode_batch_get(wire_entries.encode_entries(keys, values), state.SerializeToString())


def _check_key(key: bytes, field: str, *, bytes_min: int = 0) -> None:
    if not bytes_min <= len(key) <= KEY_BYTES_MAX:
        raise InvalidArgument(
            f"{field} must have {bytes_min} to {KEY_BYTES_MAX} bytes, not {len(key)}",
            field=field,
            keyBytes=len(key),
            keyBytesMin=bytes_min,
            keyBytesMax=KEY_BYTES_MAX,
        )


def _range_answer(page: RangePage, *, as_columns: bool) -> fold_pb2.RangeEntriesResponse:
    answer = fold_pb2.RangeEntriesResponse(state=wire_state.fold_state_to_pb(page.state))
    if page.batch is not None:
        if as_columns:
            wire.fill_columns(answer.columns, page.batch)
        else:
            wire.fill_rows(answer.rows, page.batch)
    return answer


def _history_answer(item: Batch | Gap, *, as_columns: bool) -> fold_pb2.KeyHistoryResponse:
    if isinstance(item, Gap):
        return fold_pb2.KeyHistoryResponse(next_after_seq=item.own_seq, gap=wire.gap_to_pb(item))
    answer = fold_pb2.KeyHistoryResponse(next_after_seq=item.last_seq)
    if as_columns:
        wire.fill_columns(answer.columns, item)
    else:
        wire.fill_rows(answer.rows, item)
    return answer
