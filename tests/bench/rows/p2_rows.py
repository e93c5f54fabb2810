"""P2: P1's work as rows: the same records as `RecordBatch` in place of columns, against P1's own in the same run.

Beside it, for the eye: records with all of key, data, tag and source time and of many lengths, which no path for records of
one length takes, against the same as columns; and what was appended read as rows, against the same read as columns.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from functools import partial
from pathlib import Path

import grpc

from eddyline.core.codec import records as wire
from eddyline.v1 import log_pb2, log_pb2_grpc, types_pb2
from tests.bench.harness import Figure, alternate, until_idle
from tests.bench.rows.p1_append import (
    IN_FLIGHT,
    OPTIONS,
    RECORD_BYTES,
    RECORDS,
    TOPIC,
    columns,
    create_topic,
    stream_round,
    unary_round,
)
from tests.support.cluster.processes import store_server
from tests.support.models.batches import batch_to_columns

TARGET = 0.7
READ_RECORDS = 300_000
READ_LIMIT = 10_000
READ_BYTES = 16 << 20


def rows() -> types_pb2.RecordBatch:
    """P1's batch as rows."""
    return types_pb2.RecordBatch(records=[types_pb2.Record(data=os.urandom(RECORD_BYTES)) for _ in range(RECORDS)])


def varied_rows() -> types_pb2.RecordBatch:
    """A batch of more fields, with the same bytes of data a record on average."""
    rnd = random.Random(2)
    return types_pb2.RecordBatch(
        records=[
            types_pb2.Record(
                source_ts_ns=1_764_000_000_000_000_000 + number * 1_000_003,
                key=b"sensor.%d" % rnd.randrange(10_000),
                data=rnd.randbytes(rnd.randrange(2 * RECORD_BYTES)),
                tag=rnd.choice(["a", "temperature", ""]),
            )
            for number in range(RECORDS)
        ]
    )


async def read_round(stub: log_pb2_grpc.LogServiceStub, batch_format: types_pb2.BatchFormat.ValueType) -> float:
    """Records a second read from the log's beginning, one read after the other. The answers' records are not looked at."""
    request = log_pb2.ReadRecordsRequest(topic=TOPIC, limit=READ_LIMIT, max_bytes=READ_BYTES, format=batch_format)
    started = time.perf_counter()
    while request.after_seq < READ_RECORDS:
        request.after_seq = (await stub.ReadRecords(request)).next_after_seq
    return request.after_seq / (time.perf_counter() - started)


async def measure() -> list[Figure]:
    """The row's figures."""
    with tempfile.TemporaryDirectory() as directory:
        async with (
            store_server(Path(directory) / "store") as store,
            grpc.aio.insecure_channel(store, options=OPTIONS) as channel,
        ):
            await create_topic(channel)
            stub, idle = log_pb2_grpc.LogServiceStub(channel), partial(until_idle, channel)
            by_rows, by_columns = log_pb2.AppendBatch(rows=rows()), log_pb2.AppendBatch(columns=columns())
            stream = await alternate(
                lambda: stream_round(stub, TOPIC, by_rows),
                lambda: stream_round(stub, TOPIC, by_columns),
                prepare=idle,
            )
            row_request = log_pb2.AppendRecordsRequest(topic=TOPIC, rows=by_rows.rows)
            column_request = log_pb2.AppendRecordsRequest(topic=TOPIC, columns=by_columns.columns)
            unary = await alternate(
                lambda: unary_round(stub, row_request), lambda: unary_round(stub, column_request), prepare=idle
            )
            varied = log_pb2.AppendBatch(rows=varied_rows())
            varied_columns = batch_to_columns(wire.batch_from_rows(varied.rows))
            mixed = await alternate(
                lambda: stream_round(stub, TOPIC, varied),
                lambda: stream_round(stub, TOPIC, log_pb2.AppendBatch(columns=varied_columns)),
                prepare=idle,
            )
            read = await alternate(
                lambda: read_round(stub, types_pb2.BATCH_FORMAT_ROWS),
                lambda: read_round(stub, types_pb2.BATCH_FORMAT_COLUMNS),
                prepare=idle,
            )
    return [
        Figure("P2", "append_stream", stream[0], "records/s", stream[0] / stream[1], TARGET),
        Figure("P2", "append_stream_columns", stream[1], "records/s"),
        Figure("P2", f"append_records_{IN_FLIGHT}_callers", unary[0], "records/s", unary[0] / unary[1], TARGET),
        Figure("P2", "append_stream_varied", mixed[0], "records/s", mixed[0] / mixed[1]),
        Figure("P2", "read_rows", read[0], "records/s", read[0] / read[1]),
        Figure("P2", "read_columns", read[1], "records/s"),
    ]
