"""One append by one call: repeated where its key says which it is, and never without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.client.admin.topics import kind_to_pb
from eddyline.client.append.columns import fill_records
from eddyline.client.transport.call import CALL_TIMEOUT_S, call_once, check_message, traced
from eddyline.core.store_link.protocol import AppendResult
from eddyline.v1 import log_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.client.transport.call import Retry
    from eddyline.core.model.topic import Kind
    from eddyline.core.records.record import Record
    from eddyline.v1.log_pb2_grpc import LogServiceStub


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
    stub: LogServiceStub,
    request: log_pb2.AppendRecordsRequest,
    *,
    retry: Retry,
    timeout_s: float,
    traceparent: str,
) -> AppendResult:
    """Append, within `timeout_s`.

    Raises:
        EddylineError: as `Client.append`.
    """
    check_message(request)
    metadata = traced(traceparent)
    if request.idempotency_key:
        answer = await retry.run(
            lambda left_s: stub.AppendRecords(request, timeout=min(left_s, CALL_TIMEOUT_S), metadata=metadata),
            timeout_s=timeout_s,
        )
    else:
        answer = await call_once(stub.AppendRecords(request, timeout=timeout_s, metadata=metadata))
    return AppendResult(answer.first_seq, answer.last_seq, answer.epoch, answer.ts_ms, answer.deduplicated)
