"""Answers out of their bytes are what protobuf makes of them."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from eddyline.export.split.frames import ArrowFrame, frame_of
from eddyline.v1 import segment_pb2 as pb

pytestmark = pytest.mark.spark


@given(st.binary(max_size=300), st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 32) - 1))
def test_a_batch_is_what_was_sent(message: bytes, checksum: int, count: int) -> None:
    sent = pb.ReadSplitResponse(batch=pb.ArrowBatch(message=message, checksum=checksum, count=count))
    found = frame_of(sent.SerializeToString())
    assert isinstance(found, ArrowFrame)
    assert (bytes(found.message), found.checksum, found.rows) == (message, checksum, count)


def test_other_answers_go_through_protobuf() -> None:
    for sent in (pb.ReadSplitResponse(schema=b"s"), pb.ReadSplitResponse(end=pb.SplitEnd(row_count=3))):
        assert frame_of(sent.SerializeToString()) == sent


def test_a_batch_with_a_field_of_a_later_version_goes_through_protobuf() -> None:
    inner = pb.ArrowBatch(message=b"m", checksum=1, count=2).SerializeToString() + b"\x22\x01x"
    found = frame_of(b"\x12" + bytes([len(inner)]) + inner)
    assert isinstance(found, pb.ReadSplitResponse)
    assert (found.batch.message, found.batch.checksum, found.batch.count) == (b"m", 1, 2)


@given(st.binary(max_size=40), st.data())
def test_what_is_cut_short_is_refused(message: bytes, data: st.DataObject) -> None:
    whole = pb.ReadSplitResponse(batch=pb.ArrowBatch(message=message, checksum=1, count=2)).SerializeToString()
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]
    with pytest.raises(DecodeError):
        frame_of(cut)
