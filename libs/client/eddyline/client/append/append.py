"""One append by one call: repeated where its key says which it is, and never without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.client.admin.topics import kind_to_pb
from eddyline.client.append.columns import fill_records
from eddyline.client.append.gathered_call import open_append_call
from eddyline.client.append.shared_streams import append_result, may_share
from eddyline.client.transport.call import CALL_TIMEOUT_S, call_once, check_message, traced
from eddyline.v1 import log_pb2
from eddyline.v1.log_pb2_grpc import LogServiceStub

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    import grpc

    from eddyline.client.append.shared_streams import SharedStreams
    from eddyline.client.transport.call import Retry
    from eddyline.core.model.topic import Kind
    from eddyline.core.records.record import Record
    from eddyline.core.store_link.protocol import AppendResult


def append_request(
    topic: str,
    records: Sequence[Record],
    *,
    idempotency_key: str,
    expected_head_seq: int | None,
    create: Kind | None,
) -> log_pb2.AppendRecordsRequest:
    """The call's message; versions that are expected may be added."""
    request = log_pb2.AppendRecordsRequest(
        topic=topic, idempotency_key=idempotency_key, expected_head_seq=expected_head_seq
    )
    fill_records(request, records)
    if create is not None:
        request.create.kind = kind_to_pb(create)
    return request


async def append_records(
    channel: grpc.aio.Channel,
    request: log_pb2.AppendRecordsRequest,
    *,
    retry: Retry,
    timeout_s: float,
    traceparent: str,
    streams: SharedStreams | None = None,
) -> AppendResult:
    """Append, within `timeout_s`; by one of `streams` where others of the topic are in flight.

    Raises:
        EddylineError: as `Client.append`.
    """
    check_message(request)
    metadata = traced(traceparent)
    stub = LogServiceStub(channel)
    shared = streams if streams is not None and not metadata and may_share(request) else None

    async def attempt(left_s: float) -> AppendResult:
        def make_call() -> Awaitable[log_pb2.AppendRecordsResponse]:
            return stub.AppendRecords(request, timeout=left_s, metadata=metadata)

        if shared is None:
            return append_result(await make_call())
        return await shared.append(request, make_call, open_call=lambda: open_append_call(channel), timeout_s=left_s)

    if request.idempotency_key:
        return await retry.run(lambda left_s: attempt(min(left_s, CALL_TIMEOUT_S)), timeout_s=timeout_s)
    return await call_once(attempt(timeout_s))
