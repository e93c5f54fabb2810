"""A subscriber's fold: what it makes of a snapshot and the changes after it."""

from __future__ import annotations

from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import types_pb2 as types


class Folded:
    """A subscriber's fold of a snapshot and its changes, with every promise checked."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.named: set[bytes] = set()
        self.seq = 0
        self.within = False
        self.ended = False

    def take(self, frame: pb.WatchTopicsResponse) -> None:
        match frame.WhichOneof("frame"):
            case "snapshot_begin":
                self.values, self.named, self.within = {}, set(), True
                self.seq = frame.snapshot_begin.fold_seq
            case "rows" if self.within:
                for record in frame.rows.records:
                    assert record.key not in self.named, "a key twice"
                    assert record.seq <= self.seq, "an entry from after the snapshot's point"
                    self.named.add(record.key)
                    self.values[record.key] = record.data
            case "rows":
                for record in frame.rows.records:
                    assert record.seq == self.seq + 1, "a gap or a double"
                    self.seq = record.seq
                    self.values.pop(record.key, None)
                    if record.op == types.OP_PUT:
                        self.values[record.key] = record.data
            case "snapshot_end":
                assert frame.snapshot_end.fold_seq == self.seq
                assert frame.snapshot_end.count == len(self.named)
                self.within, self.ended = False, True
