"""The first hour of a client author: code generated from our proto files alone, an append, a read, a watch, a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
CLIENT = """
import json, sys
sys.path.insert(0, "gen")
import grpc
from eddyline.v1 import delivery_pb2, delivery_pb2_grpc, log_pb2, log_pb2_grpc, topic_pb2, types_pb2

parts = json.load(open("eddyline-data/cluster.json"))
log = log_pb2_grpc.LogServiceStub(grpc.insecure_channel(parts["store"]["address"]))
rows = types_pb2.RecordBatch(records=[types_pb2.Record(key=b"17", data=b"paid")])
request = log_pb2.AppendRecordsRequest(topic="orders", rows=rows)
request.create.kind = topic_pb2.TOPIC_KIND_KV
print("appended", log.AppendRecords(request).first_seq)
delivery = delivery_pb2_grpc.DeliveryServiceStub(grpc.insecure_channel(parts["delivery"]["address"]))
wanted = delivery_pb2.WatchTopic(topic="orders", point=delivery_pb2.START_POINT_SNAPSHOT)
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
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A terminal beside a cluster, in a folder that has our proto files and nothing else of ours."""
    terminal = Terminal(tmp_path_factory.mktemp("client"))
    (terminal.folder / "proto").symlink_to(ROOT / "proto")
    with terminal.runs("eddyline up --free-ports", until="eddyline status"):
        yield terminal


def test_generated_code_appends_watches_and_is_refused_by_name(shell: Terminal) -> None:
    shell.types("mkdir gen")
    shell.types("python -m grpc_tools.protoc -Iproto --python_out=gen --grpc_python_out=gen proto/eddyline/v1/*.proto")
    shell.writes("client.py", CLIENT)
    shown = shell.types("python client.py").splitlines()
    assert shown[0] == "appended 1"
    assert "rows" in shown
    assert shown[-2:] == ["caught_up", "NOT_FOUND True"]


def test_reasons_are_listed_for_those_who_write_a_client(shell: Terminal) -> None:
    shell.types("grep -c 'TOPIC_NOT_FOUND' proto/eddyline/v1/errors.proto", "1")
