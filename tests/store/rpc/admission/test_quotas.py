"""Quotas of a store: topics and retained bytes, whatever comes at once; told with when to come again; freed by deletes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.core.errors import EddylineError, QuotaBytes
from eddyline.core.transport.status import unwrap
from eddyline.v1 import log_pb2, topic_pb2, types_pb2
from tests.support.store.served import refused, served_store

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

LOG = topic_pb2.TOPIC_KIND_LOG
RECORD_BYTES = 100 + 32
"""As `cap_bytes` counts them."""
ROOM = 20


async def outcome_of(call: Awaitable[object]) -> EddylineError | None:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return unwrap(error)
    return None


def append(topic: str, count: int) -> log_pb2.AppendRecordsRequest:
    records = [types_pb2.Record(data=b"x" * 100)] * count
    return log_pb2.AppendRecordsRequest(topic=topic, rows=types_pb2.RecordBatch(records=records))


async def test_topics_made_at_once_stay_within_the_quota(tmp_path: Path) -> None:
    async with served_store(tmp_path, topics_max=5) as store:
        async with asyncio.TaskGroup() as group:
            made = [
                group.create_task(
                    outcome_of(
                        store.topics.CreateTopic(
                            topic_pb2.CreateTopicRequest(topic=topic_pb2.Topic(name=f"t{number}", kind=LOG))
                        )
                    )
                )
                for number in range(20)
            ]
        refusals = [error for task in made if (error := task.result()) is not None]
        assert len(refusals) == 15
        assert {error.reason for error in refusals} == {"QUOTA_TOPICS"}
        assert all(int(error.metadata["retryAfterMs"]) > 0 for error in refusals)
        await store.topics.DeleteTopic(
            topic_pb2.DeleteTopicRequest(topic=(await store.link.list_topics("", "", 1))[0].name)
        )
        await store.create("another", LOG)


async def test_without_a_quota_topics_are_not_counted(tmp_path: Path) -> None:
    async with served_store(tmp_path, topics_max=0) as store:
        for number in range(3):
            await store.create(f"t{number}", LOG)


async def test_retained_bytes_stay_within_the_quota_under_concurrent_appends(tmp_path: Path) -> None:
    async with served_store(tmp_path, retained_bytes_max=ROOM * RECORD_BYTES) as store:
        for name in ("a", "b"):
            await store.create(name, LOG)
        async with asyncio.TaskGroup() as group:
            made = [
                group.create_task(outcome_of(store.log.AppendRecords(append("ab"[number % 2], 3))))
                for number in range(20)
            ]
        refusals = [error for task in made if (error := task.result()) is not None]
        assert len(refusals) == 20 - ROOM // 3
        assert all(isinstance(error, QuotaBytes) and int(error.metadata["retryAfterMs"]) for error in refusals)
        retained = sum([(await store.link.get_topic(name)).record_bytes for name in ("a", "b")])
        assert retained == ROOM // 3 * 3 * RECORD_BYTES


@pytest.mark.parametrize("how", ["records", "topic"])
async def test_deleted_records_make_room_again(tmp_path: Path, how: str) -> None:
    async with served_store(tmp_path, retained_bytes_max=ROOM * RECORD_BYTES) as store:
        for name in ("a", "b"):
            await store.create(name, LOG)
        await store.log.AppendRecords(append("a", ROOM))
        await refused(store.log.AppendRecords(append("b", 1)), "QUOTA_BYTES")
        if how == "records":
            await store.log.DeleteRecords(log_pb2.DeleteRecordsRequest(topic="a", before_seq=6))
        else:
            await store.topics.DeleteTopic(topic_pb2.DeleteTopicRequest(topic="a"))
        store.clock.advance(1.0)
        await store.log.AppendRecords(append("b", 5))


async def test_retained_bytes_are_known_after_a_restart(tmp_path: Path) -> None:
    async with served_store(tmp_path) as store:
        await store.create("a", LOG)
        await store.log.AppendRecords(append("a", ROOM))
    async with served_store(tmp_path, retained_bytes_max=ROOM * RECORD_BYTES) as store:
        await refused(store.log.AppendRecords(append("a", 1)), "QUOTA_BYTES")
