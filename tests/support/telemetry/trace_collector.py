"""A collector of traces: OTLP over gRPC, decoded, kept by service."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue

WAIT_S = 90


class Seen(NamedTuple):
    """A span as it came."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, str | int]
    events: tuple[str, ...]
    links: tuple[str, ...]
    error: str
    kind: str
    event_ns: tuple[int, ...] = ()
    """Times of `events`."""


class TraceCollector(trace_service_pb2_grpc.TraceServiceServicer):
    """See the module. `spans` in the order they came."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Seen] = []
        self.resources: list[dict[str, str | int]] = []
        self._came = asyncio.Event()

    async def Export(self, request: pb.ExportTraceServiceRequest, context: object) -> pb.ExportTraceServiceResponse:
        for group in request.resource_spans:
            resource = {pair.key: _value(pair.value) for pair in group.resource.attributes}
            self.resources.append(resource)
            self.spans += [
                Seen(
                    str(resource["service.name"]),
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    {pair.key: _value(pair.value) for pair in span.attributes},
                    tuple(event.name for event in span.events),
                    tuple(link.trace_id.hex() for link in span.links),
                    span.status.message,
                    Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    tuple(event.time_unix_nano for event in span.events),
                )
                for scope in group.scope_spans
                for span in scope.spans
            ]
        self._came.set()
        return pb.ExportTraceServiceResponse()

    async def until(self, is_enough: Callable[[list[Seen]], bool]) -> list[Seen]:
        """Wait for spans; all that came."""
        async with asyncio.timeout(WAIT_S):
            while not is_enough(self.spans):
                self._came.clear()
                await self._came.wait()
        return self.spans


@asynccontextmanager
async def trace_collector() -> AsyncIterator[TraceCollector]:
    """One on a free port."""
    server, collector = grpc.aio.server(), TraceCollector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(0)


def _value(value: AnyValue) -> str | int:
    return value.int_value if value.WhichOneof("value") == "int_value" else value.string_value
