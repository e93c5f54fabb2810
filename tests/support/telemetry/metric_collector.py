"""A collector of metrics: OTLP over gRPC, kept as it came."""

from __future__ import annotations

from concurrent import futures
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator


class Collector(metrics_service_pb2_grpc.MetricsServiceServicer):
    """See the module. `requests` in the order they came."""

    def __init__(self) -> None:
        self.requests: list[metrics_service_pb2.ExportMetricsServiceRequest] = []

    def Export(
        self, request: metrics_service_pb2.ExportMetricsServiceRequest, context: object
    ) -> metrics_service_pb2.ExportMetricsServiceResponse:
        self.requests.append(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """One on a free port, and its URL."""
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(1))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
