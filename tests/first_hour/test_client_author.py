"""The first hour of a client author: code generated from our proto files alone, an append, a read, a watch, a refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.clients.contract_page import ROOT, page_lines

if TYPE_CHECKING:
    from tests.support.terminal import Terminal

pytestmark = pytest.mark.integration

CLIENT = """
import json, sys
sys.path.insert(0, "gen")
import grpc
from eddyline.v1 import delivery_pb2, delivery_pb2_grpc, log_pb2, log_pb2_grpc, topic_pb2, types_pb2

parts = json.load(open("eddyline-data/cluster.json"))
log = log_pb2_grpc.LogServiceStub(grpc.insecure_channel(parts["store"]["address"]))
rows = types_pb2.RecordBatch(records=[types_pb2.Record(key=b"17", data=b"paid")])
request = log_pb2.AppendRecordsRequest(topic="invoices", rows=rows)
request.create.kind = topic_pb2.TOPIC_KIND_KV
print("appended", log.AppendRecords(request).first_seq)
delivery = delivery_pb2_grpc.DeliveryServiceStub(grpc.insecure_channel(parts["delivery"]["address"]))
wanted = delivery_pb2.WatchTopic(topic="invoices", point=delivery_pb2.START_POINT_SNAPSHOT)
frames = delivery.WatchTopics(delivery_pb2.WatchTopicsRequest(topics=[wanted]))
for frame in frames:
    print(frame.WhichOneof("frame"))
    if frame.HasField("caught_up"):
        break
frames.cancel()
try:
    log.ReadRecords(log_pb2.ReadRecordsRequest(topic="nothing", limit=1))
except grpc.RpcError as error:
    print(error.code().name, dict(error.trailing_metadata()).get("grpc-status-details-bin", b"") != b"")
print(types_pb2.__file__)
"""


def test_generated_code_appends_watches_and_is_refused_by_name(shell: Terminal) -> None:
    (shell.folder / "proto").symlink_to(ROOT / "proto")
    (line,) = page_lines("Python")
    shell.types(f"mkdir gen && {line}")
    shell.writes("client.py", CLIENT)
    *shown, used = shell.types("python client.py").splitlines()
    assert used.startswith(f"{shell.folder}/gen/")
    assert shown[0] == "appended 1"
    assert "rows" in shown
    assert shown[-2:] == ["caught_up", "NOT_FOUND True"]
