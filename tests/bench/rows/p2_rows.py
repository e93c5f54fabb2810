"""P2: P1's work as rows: the same records as `RecordBatch` in place of columns, against P1's own in the same run.

Beside it, for the eye: records with all of key, data, tag and source time and of many lengths, which no path for records of
one length takes, against the same as columns; and what was appended read as rows, against the same read as columns. Sides:
`tests.bench.sides`.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from eddyline.core.codec import records as wire
from eddyline.v1 import log_pb2, log_pb2_grpc, types_pb2
from tests.bench.harness import Figure, in_turn, scaled
from tests.bench.rows.p1_append import (
    IN_FLIGHT,
    OPTIONS,
    RECORD_BYTES,
    RECORDS,
    TOPIC,
    columns,
    create_topic,
    idle,
    stream_round,
    unary_round,
)
from tests.bench.sides import NOT_WORSE_MIN, our_sides, side_figures
from tests.support.cluster.processes import store_process
from tests.support.models.batches import batch_to_columns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.bench.sides import Side

    Work = Callable[[log_pb2_grpc.LogServiceStub], Awaitable[float]]

TARGET = 0.7
READ_RECORDS = scaled(300_000, multiple_of=10_000)
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
    figures: list[Figure] = []
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        channels: dict[Side, grpc.aio.Channel] = {}
        for side in our_sides():
            opened = store_process(directory / side.name, python=side.python, **side.settings)
            _, address = await stack.enter_async_context(opened)
            channels[side] = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=OPTIONS))
            await create_topic(channels[side])
        for name, (target, ways) in _works().items():
            works: dict[tuple[str, Side], Callable[[], Awaitable[float]]] = {
                (way, side): partial(work, log_pb2_grpc.LogServiceStub(channel))
                for side, channel in channels.items()
                for way, work in ways.items()
            }
            seen = await in_turn(works, prepare=partial(idle, list(channels.values())))
            medians = {key: statistics.median(rates) for key, rates in seen.items()}
            figures += _figures(name, {key: medians[key] for key in works}, target)
    return figures


def _works() -> dict[str, tuple[float | None, dict[str, Work]]]:
    """By figure, the ratio of rows to columns to reach, and both of them."""
    by_rows, by_columns = log_pb2.AppendBatch(rows=rows()), log_pb2.AppendBatch(columns=columns())
    row_request = log_pb2.AppendRecordsRequest(topic=TOPIC, rows=by_rows.rows)
    column_request = log_pb2.AppendRecordsRequest(topic=TOPIC, columns=by_columns.columns)
    varied = log_pb2.AppendBatch(rows=varied_rows())
    varied_columns = log_pb2.AppendBatch(columns=batch_to_columns(wire.batch_from_rows(varied.rows)))
    return {
        "append_stream": (
            TARGET,
            {
                "rows": lambda stub: stream_round(stub, TOPIC, by_rows),
                "columns": lambda stub: stream_round(stub, TOPIC, by_columns),
            },
        ),
        f"append_records_{IN_FLIGHT}_callers": (
            TARGET,
            {
                "rows": lambda stub: unary_round(stub, row_request),
                "columns": lambda stub: unary_round(stub, column_request),
            },
        ),
        "append_stream_varied": (
            None,
            {
                "rows": lambda stub: stream_round(stub, TOPIC, varied),
                "columns": lambda stub: stream_round(stub, TOPIC, varied_columns),
            },
        ),
        "read": (
            None,
            {
                "rows": lambda stub: read_round(stub, types_pb2.BATCH_FORMAT_ROWS),
                "columns": lambda stub: read_round(stub, types_pb2.BATCH_FORMAT_COLUMNS),
            },
        ),
    }


def _figures(name: str, rates: dict[tuple[str, Side], float], target: float | None) -> list[Figure]:
    """The rates of both; the ratio of rows is to columns of the same side, and each has one to before."""
    figures = []
    for way in ("rows", "columns"):
        of_way = {side: rate for (each, side), rate in rates.items() if each == way}
        to_columns = {f"{name}_rows_{side.name}": rates["columns", side] for side in of_way}
        for figure in side_figures("P2", f"{name}_{way}", "records/s", of_way, not_worse=NOT_WORSE_MIN):
            columns_rate = to_columns.get(figure.name)
            if columns_rate is None:
                figures.append(figure)
            else:
                goal = None if figure.name.endswith("_before") else target
                figures.append(replace(figure, ratio=figure.value / columns_rate, target=goal))
    return figures
