"""Reads of keys from a store that knows no columns for them: the same entries, from rows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, cast

from eddyline.client.read.fold import get_columns, get_entries
from eddyline.client.transport.call import Retry
from eddyline.core.codec.entries import COLUMNS_MIN
from eddyline.core.codec.records import record_to_pb
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.core.runtime.clock import SystemClock
from eddyline.v1 import fold_pb2

if TYPE_CHECKING:
    from eddyline.v1.fold_pb2_grpc import FoldServiceStub

ENTRY = Record(seq=3, ts_ms=9, op=Op.PUT, key=b"k", data=b"v", version=(3).to_bytes(8, "big"))
KEYS = [b"k", *[b"%d" % number for number in range(COLUMNS_MIN)]]


class EarlierStub:
    """A store of before the field `format`."""

    async def BatchGetEntries(
        self, request: fold_pb2.BatchGetEntriesRequest, timeout: float
    ) -> fold_pb2.BatchGetEntriesResponse:
        missing = [fold_pb2.MaybeEntry()] * (len(request.keys) - 1)
        return fold_pb2.BatchGetEntriesResponse(entries=[fold_pb2.MaybeEntry(entry=record_to_pb(ENTRY)), *missing])


async def test_store_of_an_earlier_version_answers_keys_with_rows_alone() -> None:
    stub = cast("FoldServiceStub", EarlierStub())  # of its methods this one is called
    retry = Retry(SystemClock(), random_source=random.Random(1))
    page = await get_entries(stub, "kv", KEYS, min_seq=0, retry=retry)
    assert page.entries == (ENTRY, *[None] * COLUMNS_MIN)
    columns = await get_columns(stub, "kv", KEYS, min_seq=0, retry=retry)
    assert columns.batch == Batch.from_rows([ENTRY._replace(version=b"")])
