"""Appends that no call carries are refused by their reason, at once, and nothing of them is stored."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from eddyline.client.connect import connect
from eddyline.core.errors import BatchTooLarge
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import MESSAGE_BYTES_MAX, Op, Record
from eddyline.core.runtime.clock import SystemClock
from tests.support.store.served import served_store

if TYPE_CHECKING:
    from pathlib import Path

TOO_MUCH = [Record(op=Op.APPEND, data=b"x" * 1_000_000)] * (MESSAGE_BYTES_MAX // 1_000_000 + 1)


async def test_append_over_64_mib_is_too_large_and_leaves_client_and_stream_as_they_were(tmp_path: Path) -> None:
    async with (
        served_store(tmp_path / "store") as store,
        connect(store.address, timeout_s=10, clock=SystemClock(), random_source=random.Random(1)) as client,
    ):
        await client.create_topic("t", Kind.LOG)
        for key in ("", "repeated"):
            with pytest.raises(BatchTooLarge) as refused:
                await client.append("t", TOO_MUCH, idempotency_key=key)
            assert refused.value.metadata["limitBytes"] == str(MESSAGE_BYTES_MAX)
        async with client.append_stream("t") as stream:
            with pytest.raises(BatchTooLarge):
                await stream.append(TOO_MUCH)
            await stream.append(TOO_MUCH[:1])
        assert (await client.append("t", TOO_MUCH[:60])).last_seq == 61
